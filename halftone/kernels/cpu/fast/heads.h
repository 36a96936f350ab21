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

// What is added to a query's scores of the first n keys; null where there is nothing.
inline const float* bias_row(const ConstView& bias, int64_t item, int64_t head, int64_t query,
                             int64_t n, float* buffer) {
  if (bias.data == nullptr) return nullptr;
  const Shape& s = bias.shape;
  const int64_t row = (head * s[-2] + query) * s[-1];
  return read(bias, item * bias_stride(s) + row, n, buffer);
}

// x = exp(scale x + bias - largest), returning their sum.
inline float softmax_terms(float* x, float scale, const float* bias, int64_t n) {
  if (bias == nullptr) return softmax_terms(x, scale, n);
  affine(x, {scale, 0}, n, x);
  add(x, bias, n, x);
  return softmax_terms(x, 1, n);
}

}  // namespace halftone::fast
