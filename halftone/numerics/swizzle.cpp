#include "halftone/numerics/swizzle.h"

#include "halftone/base/error.h"

namespace halftone {

std::vector<uint8_t> swizzle_scales(std::span<const uint8_t> linear, int64_t rows,
                                    int64_t scale_cols) {
  HT_ASSERT(static_cast<int64_t>(linear.size()) == rows * scale_cols);
  std::vector<uint8_t> out(static_cast<size_t>(swizzled_scale_bytes(rows, scale_cols)), 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < scale_cols; ++c) {
      out[swizzled_scale_offset(r, c, scale_cols)] = linear[r * scale_cols + c];
    }
  }
  return out;
}

std::vector<uint8_t> unswizzle_scales(std::span<const uint8_t> swizzled, int64_t rows,
                                      int64_t scale_cols) {
  HT_ASSERT(static_cast<int64_t>(swizzled.size()) == swizzled_scale_bytes(rows, scale_cols));
  std::vector<uint8_t> out(static_cast<size_t>(rows * scale_cols));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < scale_cols; ++c) {
      out[r * scale_cols + c] = swizzled[swizzled_scale_offset(r, c, scale_cols)];
    }
  }
  return out;
}

}  // namespace halftone
