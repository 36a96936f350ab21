// Rows of one head of [B, T, H, D], next to each other and as float, and back.
#pragma once

#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {

inline constexpr int64_t kQueryTile = 128;  // of attention and its gradient alike

// Tokens [first, first + count), counted over the batch.
inline void gather_head(const ConstView& x, int64_t first, int64_t count, int64_t head,
                        float* out) {
  const int64_t heads = x.shape[2], dim = x.shape[3];
  for (int64_t i = 0; i < count; ++i) {
    const float* row = read(x, ((first + i) * heads + head) * dim, dim, out + i * dim);
    if (row != out + i * dim) std::copy_n(row, dim, out + i * dim);
  }
}

inline void scatter_head(const float* rows, int64_t first, int64_t count, int64_t head,
                         const View& y) {
  if (y.data == nullptr) return;
  const int64_t heads = y.shape[2], dim = y.shape[3];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = ((first + i) * heads + head) * dim;
    if (y.dtype == DType::kF32) std::copy_n(rows + i * dim, dim, target(y, at, nullptr));
    write(y, at, dim, rows + i * dim);
  }
}

}  // namespace halftone::fast
