// For builds without Highway, whose compiler has to find the vectors.
#include <algorithm>

#include "halftone/kernels/cpu/fast/gemm.h"

namespace halftone::fast {

void own_gemm(const Gemm& g) {
  const int64_t down = g.transpose_a ? 1 : g.lda, along = g.transpose_a ? g.lda : 1;
  constexpr int64_t kColumns = 64;  // sums at a time
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t first = 0; first < g.n; first += kColumns) {
      const int64_t count = std::min(kColumns, g.n - first);
      float sums[kColumns] = {};
      for (int64_t k = 0; k < g.k; ++k) {
        const float a = g.a[i * down + k * along];
        const int64_t across = g.transpose_b ? g.ldb : 1;
        const float* b = g.b + first * across + k * (g.transpose_b ? 1 : g.ldb);
        for (int64_t j = 0; j < count; ++j) sums[j] += a * b[j * across];
      }
      float* to = g.c + i * g.ldc + first;
      for (int64_t j = 0; j < count; ++j) {
        const float y = g.alpha * sums[j];
        to[j] = g.beta == 0 ? y : y + g.beta * to[j];
      }
    }
  }
}

}  // namespace halftone::fast
