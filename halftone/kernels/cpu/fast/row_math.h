// Arithmetic on rows of floats that stay in cache: what the fast kernels and the fused ones are
// made of, so that both give the same bits. With Highway (simd_rows.cpp) or without (row_math.cpp).
#pragma once

#include <cstdint>

#include "halftone/kernels/op_args.h"
#include "halftone/numerics/bf16.h"

namespace halftone::fast {

// ---- conversions --------------------------------------------------------------------------------
void widen(const bf16* x, int64_t n, float* y);
void narrow(const float* x, int64_t n, bf16* y);
void round_to_bf16(float* x, int64_t n);  // to values that bf16 holds, in place

// ---- elementwise; y may be x --------------------------------------------------------------------
void add(const float* a, const float* b, int64_t n, float* y);
void multiply(const float* a, const float* b, int64_t n, float* y);
void affine(const float* x, AffineAttributes how, int64_t n, float* y);
void apply(Function function, const float* x, int64_t n, float* y);
void silu_mul(const float* gate, const float* up, int64_t n, float* y);

// ---- norms --------------------------------------------------------------------------------------
double sum(const float* x, int64_t n);
double sum_of_squares(const float* x, float center, int64_t n);  // (x - center)^2
void scale_and_weigh(const float* x, float scale, const float* weight, int64_t n, float* y);
void center_and_scale(const float* x, float center, float scale, int64_t n, float* y);

// ---- tokens -------------------------------------------------------------------------------------
// Pairs of one head of size n by angles of n / 2 cosines and sines; sign -1 rotates back.
struct Rotation {
  RopeLayout layout;
  float sign;
  const float *cosine, *sine;
};
void rotate(const float* x, const Rotation& by, int64_t n, float* y);
// x = exp(x * scale - largest), returning their sum.
float softmax_terms(float* x, float scale, int64_t n);
float dot(const float* a, const float* b, int64_t n);

}  // namespace halftone::fast
