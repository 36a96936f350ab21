// Pictures as people have them: PNG, JPEG and WebP, told apart by their first bytes.
#pragma once

#include <filesystem>
#include <vector>

#include "halftone/tensor/tensor.h"

namespace halftone {

struct RgbImage {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;  // [H, W, 3]
};

// As a viewer shows it: what is transparent shows white, photographs are turned the way that their
// camera was held. Files that are no pictures, or damaged, are Errors.
RgbImage read_picture(const std::filesystem::path& path);

// Whether a file's name says that it is one: .png, .jpg, .jpeg or .webp.
bool is_picture_name(const std::filesystem::path& path);

}  // namespace halftone
