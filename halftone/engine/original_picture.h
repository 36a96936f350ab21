// What a network that reads sizes is told: that a picture is a part of a larger or smaller one.
#pragma once

#include <cstdint>
#include <string>

#include "halftone/models/family.h"

namespace halftone {

struct OriginalPicture {
  int64_t width = 0, height = 0;  // 0: the picture's own
  int64_t left = 0, top = 0;      // of the part

  bool given() const { return width != 0 || height != 0 || left != 0 || top != 0; }
};

// "1536x1024", and where the part begins, "0,256". Empty texts change nothing; what is neither is
// an Error of the field.
void read_original_size(const std::string& text, const char* field, OriginalPicture& original);
void read_crop(const std::string& text, const char* field, OriginalPicture& original);

// As these texts have it.
std::string original_size_text(const PictureSizes& told);
std::string crop_text(const PictureSizes& told);

}  // namespace halftone
