// The order in which block-scaled tensor-core GEMMs read scales: tiles of 128 rows x 4 scale
// columns, 512 bytes each, rows interleaved by 32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halftone/numerics/swizzle_offset.h"

namespace halftone {

// Row-major [rows, scale_cols] to swizzled and back. Padding is zero.
std::vector<uint8_t> swizzle_scales(std::span<const uint8_t> linear, int64_t rows,
                                    int64_t scale_cols);
std::vector<uint8_t> unswizzle_scales(std::span<const uint8_t> swizzled, int64_t rows,
                                      int64_t scale_cols);

}  // namespace halftone
