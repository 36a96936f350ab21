// oneDNN's float matrix product, row-major.
#pragma once

#include <cstdint>

namespace halftone::fast {

// c [m, n] = alpha op(a) op(b) + beta c; ld* are elements from one row to the next.
struct Gemm {
  int64_t m, n, k;
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  bool transpose_a = false, transpose_b = true;
  float alpha = 1, beta = 0;
};
// On the calling thread's OpenMP setting; inside a parallel region on the calling thread alone.
void gemm(const Gemm& g);

}  // namespace halftone::fast
