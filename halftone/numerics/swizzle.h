// The order in which block-scaled tensor-core GEMMs read scales: tiles of 128 rows x 4 scale
// columns, 512 bytes each, rows interleaved by 32. Offsets are callable on host and device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halftone/base/host_device.h"

namespace halftone {

// Byte offset of the scale in row r, scale column c, of a matrix with `scale_cols` scale columns.
HT_HOST_DEVICE constexpr int64_t swizzled_scale_offset(int64_t r, int64_t c, int64_t scale_cols) {
  const int64_t tiles_across = (scale_cols + 3) / 4;
  return ((r / 128) * tiles_across + c / 4) * 512 + (r % 32) * 16 + ((r % 128) / 32) * 4 + c % 4;
}

// Bytes of the swizzled scales of [rows, scale_cols], padding included.
HT_HOST_DEVICE constexpr int64_t swizzled_scale_bytes(int64_t rows, int64_t scale_cols) {
  return ((rows + 127) / 128 * 128) * ((scale_cols + 3) / 4 * 4);
}

// Row-major [rows, scale_cols] to swizzled and back. Padding is zero.
std::vector<uint8_t> swizzle_scales(std::span<const uint8_t> linear, int64_t rows,
                                    int64_t scale_cols);
std::vector<uint8_t> unswizzle_scales(std::span<const uint8_t> swizzled, int64_t rows,
                                      int64_t scale_cols);

}  // namespace halftone
