// Arithmetic on rows of floats for each instruction set (fast/row_math.h). Sums run in a fixed
// order of lanes, so a row's result does not depend on how many rows there are.
#include <cmath>
#include <cstring>

#include "halftone/kernels/cpu/fast/row_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halftone/kernels/cpu/simd_rows.cpp"
#include "hwy/foreach_target.h"
//
#include "halftone/kernels/cpu/simd_codecs-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace halftone::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE float total_of_lanes(VF x) { return hn::GetLane(hn::SumOfLanes(DF(), x)); }

// n < 16 values, and zeros after them.
struct Padded {
  alignas(64) float values[16] = {};
  Padded(const float* x, int64_t n) { std::memcpy(values, x, static_cast<size_t>(n) * sizeof *x); }
};

// Calls fn(vector of x, ...) for whole vectors, and once for what is left, padded with zeros.
template <class Fn, class... Rows>
HWY_INLINE void map_rows(int64_t n, float* y, const Fn& fn, const Rows*... rows) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(fn(hn::LoadU(d, rows + i)...), d, y + i);
  if (i < n) {
    Padded out(y, 0);
    hn::Store(fn(hn::Load(d, Padded(rows + i, n - i).values)...), d, out.values);
    std::memcpy(y + i, out.values, static_cast<size_t>(n - i) * sizeof *y);
  }
}

// Sums in two vectors of lanes, collected in double every thousand values or so.
template <class Fn>
HWY_INLINE double total(const float* x, int64_t n, const Fn& fn) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  double result = 0;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    const int64_t end = begin + 1024 < n ? begin + 1024 : n;
    auto even = hn::Zero(d), odd = hn::Zero(d);
    int64_t i = begin;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      even = hn::Add(even, fn(hn::LoadU(d, x + i)));
      odd = hn::Add(odd, fn(hn::LoadU(d, x + i + lanes)));
    }
    float rest = 0;
    for (; i < end; ++i) rest += hn::GetLane(fn(hn::Set(d, x[i])));
    result += double{total_of_lanes(hn::Add(even, odd))} + double{rest};
  }
  return result;
}

// Highway's Exp is defined from -104 to 104 only, and loses NaN.
HWY_INLINE VF exponential(VF x) {
  const DF d;
  const VF inside = hn::Min(hn::Max(x, hn::Set(d, -104.0f)), hn::Set(d, 104.0f));
  return hn::IfThenElse(hn::Eq(x, x), hn::Exp(d, inside), x);
}
HWY_INLINE VF hyperbolic_tangent(VF x) {
  const DF d;
  const VF inside = hn::Min(hn::Max(x, hn::Set(d, -20.0f)), hn::Set(d, 20.0f));
  return hn::IfThenElse(hn::Eq(x, x), hn::Tanh(d, inside), x);
}
// From e^-|x|, which cannot overflow; small results keep their digits.
HWY_INLINE VF sigmoid(VF x) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  const VF e = exponential(hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}
// numerics/gelu.h
HWY_INLINE VF gelu(VF x) {
  const DF d;
  const VF cube = hn::Mul(hn::Mul(x, x), x);
  const VF inner = hn::Add(x, hn::Mul(hn::Set(d, 0.044715f), cube));
  return hn::Mul(x, sigmoid(hn::Mul(hn::Set(d, 1.5957691216f), inner)));
}

HWY_INLINE VF quick_gelu(VF x) { return hn::Mul(x, sigmoid(hn::Mul(hn::Set(DF(), 1.702f), x))); }
// Phi(x), and e^(-x^2 / 2). With erfc(z) = t e^(g(t) - z^2), t = 1 / (1 + z / 2), and a polynomial
// g that leaves a relative error of 1.2e-7. The exponent is split, so that small results keep their
// digits: the square of a few leading bits of x is exact.
struct Normal {
  VF distribution, bell;
};
HWY_INLINE Normal normal(VF x) {
  const DF d;
  const VF a = hn::Min(hn::Abs(x), hn::Set(d, 40.0f));  // where it all is zero already
  const VF leading = hn::BitCast(d, hn::And(hn::BitCast(DU(), a), hn::Set(DU(), 0xFFFFF000u)));
  const VF half = hn::Set(d, 0.5f);
  const VF large = hn::Mul(hn::Mul(leading, leading), half);
  const VF small = hn::Mul(hn::Mul(hn::Sub(a, leading), hn::Add(a, leading)), half);
  const VF one = hn::Set(d, 1.0f);
  const VF t = hn::Div(one, hn::Add(one, hn::Mul(a, hn::Set(d, 0.35355339059f))));
  VF g = hn::Set(d, 0.17087277f);
  for (const float c : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f,
                        0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f}) {
    g = hn::Add(hn::Mul(g, t), hn::Set(d, c));
  }
  const VF e = exponential(hn::Neg(large));
  const VF tail = hn::Mul(hn::Mul(hn::Mul(half, t), exponential(hn::Sub(g, small))), e);
  return {hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail)),
          hn::Mul(exponential(hn::Neg(small)), e)};
}
HWY_INLINE VF erf_gelu(VF x) { return hn::Mul(x, normal(x).distribution); }
HWY_INLINE VF erf_gelu_slope(VF x) {
  const Normal at = normal(x);
  return hn::Add(at.distribution, hn::Mul(x, hn::Mul(hn::Set(DF(), 0.39894228040f), at.bell)));
}

HWY_ATTR void Widen(const bf16* x, int64_t n, float* y) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(load(x + i), DF(), y + i);
  for (; i < n; ++i) y[i] = to_float(x[i]);
}
HWY_ATTR void Narrow(const float* x, int64_t n, bf16* y) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store_bf16(hn::LoadU(DF(), x + i), y + i);
  for (; i < n; ++i) y[i] = to_bf16(x[i]);
}
HWY_ATTR void RoundToBf16(float* x, int64_t n) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const VF v = hn::LoadU(DF(), x + i);
    const auto bits = hn::BitCast(DU(), v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DU(), 1));
    const auto rounded =
        hn::And(hn::Add(hn::Add(bits, hn::Set(DU(), 0x7FFF)), odd), hn::Set(DU(), 0xFFFF0000u));
    const auto is_nan = hn::Gt(magnitude(v), hn::Set(DI(), kF32Infinity));
    const VI result = hn::IfThenElse(is_nan, hn::Set(DI(), 0x7FFF0000), hn::BitCast(DI(), rounded));
    hn::StoreU(hn::BitCast(DF(), result), DF(), x + i);
  }
  for (; i < n; ++i) x[i] = to_float(to_bf16(x[i]));
}

HWY_ATTR void AddRows(const float* a, const float* b, int64_t n, float* y) {
  map_rows(n, y, [](VF u, VF v) HWY_ATTR { return hn::Add(u, v); }, a, b);
}
HWY_ATTR void MultiplyRows(const float* a, const float* b, int64_t n, float* y) {
  map_rows(n, y, [](VF u, VF v) HWY_ATTR { return hn::Mul(u, v); }, a, b);
}
HWY_ATTR void Affine(const float* x, AffineAttributes how, int64_t n, float* y) {
  const VF scale = hn::Set(DF(), how.scale), shift = hn::Set(DF(), how.shift);
  map_rows(n, y, [=](VF v) HWY_ATTR { return hn::Add(hn::Mul(v, scale), shift); }, x);
}
HWY_ATTR void Apply(Function function, const float* x, int64_t n, float* y) {
  switch (function) {
    case Function::kTanh:
      return map_rows(n, y, [](VF v) HWY_ATTR { return hyperbolic_tangent(v); }, x);
    case Function::kSigmoid:
      return map_rows(n, y, [](VF v) HWY_ATTR { return sigmoid(v); }, x);
    case Function::kSilu:
      return map_rows(n, y, [](VF v) HWY_ATTR { return hn::Mul(v, sigmoid(v)); }, x);
    case Function::kGelu:
      return map_rows(n, y, [](VF v) HWY_ATTR { return gelu(v); }, x);
    case Function::kQuickGelu:
      return map_rows(n, y, [](VF v) HWY_ATTR { return quick_gelu(v); }, x);
    case Function::kErfGelu:
      return map_rows(n, y, [](VF v) HWY_ATTR { return erf_gelu(v); }, x);
    case Function::kErfGeluSlope:
      return map_rows(n, y, [](VF v) HWY_ATTR { return erf_gelu_slope(v); }, x);
    case Function::kSin:  // of a few numbers, which may be large: Highway's end at 39,000
      for (int64_t i = 0; i < n; ++i) y[i] = std::sin(x[i]);
      return;
    case Function::kCos:
      for (int64_t i = 0; i < n; ++i) y[i] = std::cos(x[i]);
      return;
  }
}
HWY_ATTR void SiluMul(const float* gate, const float* up, int64_t n, float* y) {
  map_rows(n, y, [](VF g, VF u) HWY_ATTR { return hn::Mul(hn::Mul(g, sigmoid(g)), u); }, gate, up);
}

HWY_ATTR double Sum(const float* x, int64_t n) {
  return total(x, n, [](VF v) HWY_ATTR { return v; });
}
HWY_ATTR double SumOfSquares(const float* x, float center, int64_t n) {
  const VF c = hn::Set(DF(), center);
  return total(x, n, [=](VF v) HWY_ATTR {
    const VF d = hn::Sub(v, c);
    return hn::Mul(d, d);
  });
}
HWY_ATTR void ScaleAndWeigh(const float* x, float scale, const float* weight, int64_t n, float* y) {
  const VF s = hn::Set(DF(), scale);
  map_rows(n, y, [=](VF v, VF w) HWY_ATTR { return hn::Mul(hn::Mul(v, s), w); }, x, weight);
}
HWY_ATTR void CenterAndScale(const float* x, float center, float scale, int64_t n, float* y) {
  const VF c = hn::Set(DF(), center), s = hn::Set(DF(), scale);
  map_rows(n, y, [=](VF v) HWY_ATTR { return hn::Mul(hn::Sub(v, c), s); }, x);
}

HWY_ATTR void Rotate(const float* x, const fast::Rotation& by, int64_t n, float* y) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t half = n / 2;
  const bool interleaved = by.layout == RopeLayout::kInterleaved;
  const VF sign = hn::Set(d, by.sign);
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    const VF c = hn::LoadU(d, by.cosine + i), s = hn::Mul(sign, hn::LoadU(d, by.sine + i));
    VF u, v;
    if (interleaved) {
      hn::LoadInterleaved2(d, x + 2 * i, u, v);
    } else {
      u = hn::LoadU(d, x + i);
      v = hn::LoadU(d, x + i + half);
    }
    const VF first = hn::Sub(hn::Mul(u, c), hn::Mul(v, s));
    const VF second = hn::Add(hn::Mul(u, s), hn::Mul(v, c));
    if (interleaved) {
      hn::StoreInterleaved2(first, second, d, y + 2 * i);
    } else {
      hn::StoreU(first, d, y + i);
      hn::StoreU(second, d, y + i + half);
    }
  }
  for (; i < half; ++i) {
    const int64_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
    const float u = x[a], v = x[b], c = by.cosine[i], s = by.sign * by.sine[i];
    y[a] = u * c - v * s;
    y[b] = u * s + v * c;
  }
}

HWY_ATTR float SoftmaxTerms(float* x, float scale, int64_t n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF by = hn::Set(d, scale);
  VF most = hn::Set(d, -HUGE_VALF);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const VF v = hn::Mul(hn::LoadU(d, x + i), by);
    hn::StoreU(v, d, x + i);
    most = hn::Max(most, v);
  }
  float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < n; ++i) {
    x[i] *= scale;
    largest = x[i] > largest ? x[i] : largest;
  }
  const VF top = hn::Set(d, largest);
  VF sums = hn::Zero(d);
  for (i = 0; i + lanes <= n; i += lanes) {
    const VF term = exponential(hn::Sub(hn::LoadU(d, x + i), top));
    hn::StoreU(term, d, x + i);
    sums = hn::Add(sums, term);
  }
  float result = total_of_lanes(sums);
  for (; i < n; ++i) {
    x[i] = hn::GetLane(exponential(hn::Set(d, x[i] - largest)));
    result += x[i];
  }
  return result;
}

HWY_ATTR float Dot(const float* a, const float* b, int64_t n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF even = hn::Zero(d), odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), odd);
  }
  float result = total_of_lanes(hn::Add(even, odd));
  for (; i < n; ++i) result += a[i] * b[i];
  return result;
}

}  // namespace halftone::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halftone {
namespace simd {

HWY_EXPORT(Widen);
HWY_EXPORT(Narrow);
HWY_EXPORT(RoundToBf16);
HWY_EXPORT(AddRows);
HWY_EXPORT(MultiplyRows);
HWY_EXPORT(Affine);
HWY_EXPORT(Apply);
HWY_EXPORT(SiluMul);
HWY_EXPORT(Sum);
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(ScaleAndWeigh);
HWY_EXPORT(CenterAndScale);
HWY_EXPORT(Rotate);
HWY_EXPORT(SoftmaxTerms);
HWY_EXPORT(Dot);

}  // namespace simd

namespace fast {
using namespace simd;  // NOLINT: the tables of functions that HWY_EXPORT defines

void widen(const bf16* x, int64_t n, float* y) { HWY_DYNAMIC_DISPATCH(Widen)(x, n, y); }
void narrow(const float* x, int64_t n, bf16* y) { HWY_DYNAMIC_DISPATCH(Narrow)(x, n, y); }
void round_to_bf16(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(RoundToBf16)(x, n); }
void add(const float* a, const float* b, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(AddRows)(a, b, n, y);
}
void multiply(const float* a, const float* b, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(MultiplyRows)(a, b, n, y);
}
void affine(const float* x, AffineAttributes how, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(Affine)(x, how, n, y);
}
void apply(Function function, const float* x, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(Apply)(function, x, n, y);
}
void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(SiluMul)(gate, up, n, y);
}
double sum(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(Sum)(x, n); }
double sum_of_squares(const float* x, float center, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(x, center, n);
}
void scale_and_weigh(const float* x, float scale, const float* weight, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(ScaleAndWeigh)(x, scale, weight, n, y);
}
void center_and_scale(const float* x, float center, float scale, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(CenterAndScale)(x, center, scale, n, y);
}
void rotate(const float* x, const Rotation& by, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(Rotate)(x, by, n, y);
}
float softmax_terms(float* x, float scale, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxTerms)(x, scale, n);
}
float dot(const float* a, const float* b, int64_t n) { return HWY_DYNAMIC_DISPATCH(Dot)(a, b, n); }

}  // namespace fast
}  // namespace halftone
#endif
