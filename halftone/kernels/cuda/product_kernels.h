// Kernels around a GEMM.
#pragma once

#include "halftone/kernels/cuda/context.h"
#include "halftone/numerics/bf16.h"

namespace halftone::cuda {

// y [M, N] = a [M, K] b [N, K]^T + bias, a dot product for each output: for few rows.
void dot_products(const MatMulArgs& args, cudaStream_t stream);

// A view without format as F32.
void widen(const ConstView& x, float* y, cudaStream_t stream);
void widen(const bf16* x, int64_t count, float* y, cudaStream_t stream);

void round_to_bf16(const ConstView& x, bf16* y, cudaStream_t stream);

// y [3, stride]: each of `count` floats as the sum of three, exactly (but for what is below BF16's
// smallest number). The first of what is not finite is all of it.
void split_floats(const float* x, int64_t count, bf16* y, int64_t stride, cudaStream_t stream);

// Scales of rows of either operand (null where there are none), what is added, and rounding, from
// sums.
struct FinishArgs {
  const float* sums = nullptr;  // [M, N]
  const float* row_scales = nullptr;
  const float* column_scales = nullptr;
  ConstView bias, addend;
  View y;
  bool gelu = false;
};
void finish_product(const FinishArgs& args, cudaStream_t stream);

// y [cols, rows] = the transpose of x [rows, cols].
void transpose_bytes(const uint8_t* x, int64_t rows, int64_t cols, uint8_t* y, cudaStream_t stream);

// alpha = a * b; null counts as 1.
void multiply_scalars(const float* a, const float* b, float* alpha, cudaStream_t stream);

// Row-major scales [rows, columns] of blocks to the order that tensor cores read; padding is zero.
void swizzle_scales(const uint8_t* linear, int64_t rows, int64_t columns, uint8_t* swizzled,
                    cudaStream_t stream);

}  // namespace halftone::cuda
