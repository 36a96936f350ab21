// Where a block's scale lies in the tiles that block-scaled tensor-core products read (swizzle.h).
#pragma once

#include <cstdint>

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

}  // namespace halftone
