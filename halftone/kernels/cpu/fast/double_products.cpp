#include "halftone/kernels/cpu/fast/double_products.h"

namespace halftone::fast {

void subtract_products(const RowProducts& p) {
  constexpr int64_t kLanes = 4;  // sums, so that the compiler can use vectors
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      const double *a = p.a + i * p.stride, *b = p.b + j * p.stride;
      double sums[kLanes] = {};
      int64_t k = 0;
      for (; k + kLanes <= p.k; k += kLanes) {
        for (int64_t l = 0; l < kLanes; ++l) sums[l] += a[k + l] * b[k + l];
      }
      double sum = sums[0] + sums[1] + sums[2] + sums[3];
      for (; k < p.k; ++k) sum += a[k] * b[k];
      p.c[i * p.stride + j] -= sum;
    }
  }
}

}  // namespace halftone::fast
