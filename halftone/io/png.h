// PNG files with text that says how a picture was made.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "halftone/tensor/tensor.h"

namespace halftone {

using PngText = std::vector<std::pair<std::string, std::string>>;  // key, UTF-8 value

struct PngImage {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;  // [H, W, 3]
  PngText text;
  std::vector<uint8_t> exif = {};  // where the file has it
};

// To a file as a whole or not at all, into a pipe or device, or to standard output ("-").
void write_png(const std::filesystem::path& path, const PngImage& image);
// image F32 [3, H, W], -1 to 1; what lies outside is cut off.
void write_png(const std::filesystem::path& path, const Tensor& image, const PngText& text);

// An Error that names the field where the name of a file promises another kind of picture.
void check_png_name(const std::filesystem::path& path, const char* field);

// The file's bytes instead.
std::string encode_png(const PngImage& image);
std::string encode_png(const Tensor& image, const PngText& text = {});

// An Error where a picture has more pixels than anyone's, before memory is taken for them.
void check_picture_size(int64_t width, int64_t height, const std::string& name);

// [H, W, 4] with alpha to [H, W, 3] on white.
void put_on_white(std::vector<uint8_t>& pixels);

std::vector<uint8_t> to_rgb(const Tensor& image);  // F32 [3, H, W] to [H, W, 3]
// What is transparent is dropped: the colours are as they are stored; or it shows white.
enum class PngAlpha : uint8_t { kDropped, kOnWhite };
// Size and text alone, of a file that ends as it should; what is text behind the pixels is not
// read.
PngImage read_png_header(const std::filesystem::path& path);
PngImage read_png(const std::filesystem::path& path, PngAlpha alpha = PngAlpha::kDropped);

}  // namespace halftone
