// Products of rows in double for each instruction set (fast/double_products.h).
#include "halftone/kernels/cpu/fast/double_products.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halftone/kernels/cpu/simd_double_products.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace halftone::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DD = hn::ScalableTag<double>;
using VD = hn::Vec<DD>;

// Four rows of a with two of b: every vector that is read is used several times, and the eight sums
// do not wait for each other.
template <int kRows, int kColumns>
HWY_INLINE void tile(const fast::RowProducts& p, int64_t i, int64_t j) {
  const DD d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const double *a = p.a + i * p.stride, *b = p.b + j * p.stride;
  VD sums[kRows][kColumns];
  for (auto& row : sums) {
    for (VD& sum : row) sum = hn::Zero(d);
  }
  int64_t k = 0;
  for (; k + lanes <= p.k; k += lanes) {
    VD x[kColumns];
    for (int c = 0; c < kColumns; ++c) x[c] = hn::LoadU(d, b + c * p.stride + k);
    for (int r = 0; r < kRows; ++r) {
      const VD y = hn::LoadU(d, a + r * p.stride + k);
      for (int c = 0; c < kColumns; ++c) sums[r][c] = hn::MulAdd(y, x[c], sums[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      double sum = hn::GetLane(hn::SumOfLanes(d, sums[r][c]));
      for (int64_t rest = k; rest < p.k; ++rest) {
        sum += a[r * p.stride + rest] * b[c * p.stride + rest];
      }
      p.c[(i + r) * p.stride + j + c] -= sum;
    }
  }
}

template <int kRows>
HWY_INLINE void rows(const fast::RowProducts& p, int64_t i) {
  int64_t j = 0;
  for (; j + 2 <= p.n; j += 2) tile<kRows, 2>(p, i, j);
  if (j < p.n) tile<kRows, 1>(p, i, j);
}

void SubtractProducts(const fast::RowProducts& p) {
  int64_t i = 0;
  for (; i + 4 <= p.m; i += 4) rows<4>(p, i);
  for (; i < p.m; ++i) rows<1>(p, i);
}

}  // namespace halftone::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halftone {
namespace simd {
HWY_EXPORT(SubtractProducts);
}  // namespace simd
namespace fast {

using namespace simd;  // NOLINT(google-build-using-namespace): the tables of HWY_EXPORT

void subtract_products(const RowProducts& p) { HWY_DYNAMIC_DISPATCH(SubtractProducts)(p); }

}  // namespace fast
}  // namespace halftone
#endif
