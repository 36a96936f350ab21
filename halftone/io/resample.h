// Pictures in another size: Lanczos filtering over three lobes, wide enough to average all pixels
// where a picture shrinks.
#pragma once

#include "halftone/io/read_picture.h"

namespace halftone {

// The middle of the picture, as much of it as has the target's shape, in the target's size: F32
// [3, height, width], -1 to 1.
Tensor resize_to_fill(const RgbImage& image, int64_t width, int64_t height);

}  // namespace halftone
