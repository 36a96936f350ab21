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

// On the calling thread alone.
void gemm(const Gemm& g);

// The same product in tiles that are dealt to threads. What tile a value belongs to depends on the
// rows of one item of a batch, n and k, so its bits depend neither on the number of threads, which
// oneDNN would cut the problem by, nor on the batch.
void gemm_in_tiles(const Gemm& g, int64_t rows_per_item, int threads);

// Throws where the process cannot get this much more memory. oneDNN allocates while it runs
// (generated code, packed operands), and not all of it is looked at.
void require_memory_for_onednn(int threads);

}  // namespace halftone::fast
