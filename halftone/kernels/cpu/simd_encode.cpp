// Vectorized amax, scales and encoding, for each instruction set.
#include <algorithm>
#include <array>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/kernels/cpu/simd_spans.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halftone/kernels/cpu/simd_encode.cpp"
#include "hwy/foreach_target.h"  // compiles this file once per target
//
#include "halftone/kernels/cpu/simd_codecs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halftone::simd::HWY_NAMESPACE {

// ---- amax ---------------------------------------------------------------------------------------

// Folds a vector of unsigned 16-bit or signed 32-bit lanes to its largest.
template <class D, class V>
HWY_ATTR hn::TFromD<D> largest_lane(D d, V v) {
  if constexpr (sizeof(hn::TFromD<D>) == 2 && hn::MaxLanes(D()) > 8) {
    const hn::Half<D> half;
    return largest_lane(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return hn::GetLane(hn::MaxOfLanes(d, v));
  }
}

// Magnitudes compare as integers in the type's own width.
template <class In, int kCap>
struct MagnitudeLanes;
template <int kCap>
struct MagnitudeLanes<float, kCap> {
  using D = hn::CappedTag<int32_t, kCap>;
  static constexpr int32_t kMask = 0x7FFFFFFF;
  static float value(int32_t bits) { return bit_cast<float>(bits); }
};
template <int kCap>
struct MagnitudeLanes<bf16, kCap> {
  using D = hn::CappedTag<uint16_t, kCap>;
  static constexpr uint16_t kMask = 0x7FFF;
  static float value(uint16_t bits) { return to_float(bf16{bits}); }
};
template <int kCap>
struct MagnitudeLanes<fp16, kCap> {
  using D = hn::CappedTag<uint16_t, kCap>;
  static constexpr uint16_t kMask = 0x7FFF;
  static float value(uint16_t bits) { return to_float(fp16{bits}); }
};

template <int kCap, class In>
HWY_ATTR float amax_of(const In* x, int64_t n) {
  using Lanes = MagnitudeLanes<In, kCap>;
  const typename Lanes::D d;
  using T = hn::TFromD<typename Lanes::D>;
  const auto* values = reinterpret_cast<const T*>(x);
  const auto mask = hn::Set(d, Lanes::kMask);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto largest = hn::Zero(d);
  auto largest2 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    largest = hn::Max(largest, hn::And(hn::LoadU(d, values + i), mask));
    largest2 = hn::Max(largest2, hn::And(hn::LoadU(d, values + i + lanes), mask));
  }
  for (; i + lanes <= n; i += lanes) {
    largest = hn::Max(largest, hn::And(hn::LoadU(d, values + i), mask));
  }
  T result = largest_lane(d, hn::Max(largest, largest2));
  for (; i < n; ++i) result = std::max(result, static_cast<T>(values[i] & Lanes::kMask));
  return Lanes::value(result);
}

// Calls fn with x as a pointer to its type.
template <class Fn>
auto with_type(Span x, const Fn& fn) {
  switch (x.dtype) {
    case DType::kBF16:
      return fn(static_cast<const bf16*>(x.data));
    case DType::kF16:
      return fn(static_cast<const fp16*>(x.data));
    default:
      return fn(static_cast<const float*>(x.data));
  }
}

uint32_t AmaxBits(Span x) {
  return bit_cast<uint32_t>(with_type(x, [&](const auto* p) { return amax_of<64>(p, x.size); }));
}

template <int kBlock, class In>
HWY_ATTR void block_amax_of(const In* x, int64_t n, float* amax) {
  const int64_t whole = n / kBlock;
  for (int64_t b = 0; b < whole; ++b) amax[b] = amax_of<kBlock>(x + b * kBlock, kBlock);
  if (n % kBlock != 0) amax[whole] = amax_of<kBlock>(x + whole * kBlock, n % kBlock);
}

void BlockAmax(Span x, int block, float* amax) {
  with_type(x, [&](const auto* p) {
    block == 16 ? block_amax_of<16>(p, x.size, amax) : block_amax_of<32>(p, x.size, amax);
  });
}

// ---- scales -------------------------------------------------------------------------------------

template <class F>
HWY_ATTR void mx_scales_of(const float* amax, int64_t blocks, ExponentRounding rounding,
                           uint8_t* codes, float* factors) {
  const VI zero = hn::Zero(DI()), one = hn::Set(DI(), 1);
  constexpr auto kMaxMantissa = static_cast<int32_t>(bit_cast<uint32_t>(F::kMax) & 0x7FFFFFu);
  // What carries a mantissa into the exponent: nothing, any bit, half of the last place of the
  // element, or more than the largest element's mantissa.
  int32_t carry = 0;
  if (rounding == ExponentRounding::kCeil) carry = 0x7FFFFF;
  if (rounding == ExponentRounding::kEven) carry = 1 << (23 - F::kMantissaBits - 1);
  if (rounding == ExponentRounding::kRCeil) carry = 0x7FFFFF - kMaxMantissa;
  for (int64_t i = 0; i < blocks; i += static_cast<int64_t>(hn::Lanes(DF()))) {
    const VI mag = magnitude(hn::LoadU(DF(), amax + i));
    const VI field = hn::ShiftRight<23>(hn::Add(mag, hn::Set(DI(), carry)));
    VI code = hn::Max(hn::Sub(field, hn::Set(DI(), F::kMaxExponent)), zero);
    const VI infinity = hn::Set(DI(), kF32Infinity);
    code = hn::IfThenElse(hn::Eq(mag, infinity), hn::Set(DI(), 0xFE), code);
    code = hn::IfThenElse(hn::Gt(mag, infinity), hn::Set(DI(), 0xFF), code);
    store_bytes(code, codes + i);
    // 2^(127 - code): field 254 - code, except that 2^-127 is subnormal and 0xFF is NaN.
    VI factor = hn::ShiftLeft<23>(hn::Sub(hn::Set(DI(), 254), code));
    factor = hn::IfThenElse(hn::Eq(factor, zero), hn::Set(DI(), 0x00400000), factor);
    const auto is_nan = hn::Gt(code, hn::Sub(hn::Set(DI(), 0xFF), one));
    factor = hn::IfThenElse(is_nan, hn::Set(DI(), 0x7FC00000), factor);
    hn::StoreU(hn::BitCast(DF(), factor), DF(), factors + i);
  }
}

void MxScalesOf(const float* amax, int64_t blocks, MxScales rule, uint8_t* codes, float* factors) {
  rule.element == ElementType::kE4M3
      ? mx_scales_of<E4M3>(amax, blocks, rule.rounding, codes, factors)
      : mx_scales_of<E5M2>(amax, blocks, rule.rounding, codes, factors);
}

struct Nvfp4Lanes {
  VI code;
  VF scale;   // decoded block scale * g
  VF factor;  // its reciprocal, 0 for 0
};

inline HWY_ATTR Nvfp4Lanes nvfp4_lanes(VF amax, float target, Nvfp4Scales rule) {
  VF ideal = hn::Div(hn::Div(amax, hn::Set(DF(), target)), hn::Set(DF(), rule.g));
  const VF clamp = hn::Set(DF(), rule.lower_clamp);
  ideal = hn::IfThenElse(hn::Lt(ideal, clamp), clamp, ideal);  // keeps NaN
  const VI code = encode_lanes<E4M3>(ideal);
  const VF scale = hn::Mul(decode_lanes<E4M3>(code), hn::Set(DF(), rule.g));
  const VF reciprocal = hn::Div(hn::Set(DF(), 1.0f), scale);
  const auto is_zero = hn::Eq(scale, hn::Zero(DF()));
  return {code, scale, hn::IfThenElse(is_zero, hn::Zero(DF()), reciprocal)};
}

HWY_ATTR void Nvfp4ScalesOf(const float* amax, int64_t blocks, Nvfp4Scales rule, uint8_t* codes,
                            float* factors) {
  for (int64_t i = 0; i < blocks; i += static_cast<int64_t>(hn::Lanes(DF()))) {
    const Nvfp4Lanes lanes = nvfp4_lanes(hn::LoadU(DF(), amax + i), 6.0f, rule);
    store_bytes(lanes.code, codes + i);
    hn::StoreU(lanes.factor, DF(), factors + i);
  }
}

// The sum of all lanes as a binary tree: i with i + 8, then + 4, + 2, + 1, whatever the width.
template <class D, class V>
HWY_ATTR HWY_INLINE float fold(D, V v) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return fold(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    v = hn::Add(v, hn::Shuffle1032(v));
    return hn::GetLane(hn::Add(v, hn::Shuffle2301(v)));
  }
}

template <class In>
HWY_ATTR HWY_INLINE float squared_error(const In* x, float factor, float scale) {
  constexpr size_t kLanes = hn::MaxLanes(DF());
  constexpr size_t kVectors = 16 / kLanes;
  VF sum[kVectors];
  for (size_t i = 0; i < kVectors; ++i) {
    const VF value = load(x + i * kLanes);
    const VI code = encode_lanes<E2M1>(hn::Mul(value, hn::Set(DF(), factor)));
    const VF difference = hn::Sub(value, hn::Mul(decode_lanes<E2M1>(code), hn::Set(DF(), scale)));
    sum[i] = hn::Mul(difference, difference);
  }
  for (size_t half = kVectors / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sum[i] = hn::Add(sum[i], sum[i + half]);
  }
  return fold(DF(), sum[0]);
}

template <class In>
HWY_ATTR void four_over_six_of(const In* x, int64_t n, const float* amax, Nvfp4Scales rule,
                               uint8_t* codes, float* factors) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  HWY_ALIGN std::array<std::array<float, 16>, 2> scale;
  HWY_ALIGN std::array<std::array<float, 16>, 2> factor;
  std::array<std::array<uint8_t, 16>, 2> code;
  const int64_t blocks = (n + 15) / 16;
  for (int64_t b0 = 0; b0 < blocks; b0 += lanes) {
    for (int which = 0; which < 2; ++which) {
      const auto v = nvfp4_lanes(hn::LoadU(DF(), amax + b0), which == 0 ? 6.0f : 4.0f, rule);
      store_bytes(v.code, code[which].data());
      hn::StoreU(v.scale, DF(), scale[which].data());
      hn::StoreU(v.factor, DF(), factor[which].data());
    }
    for (int64_t b = b0; b < std::min(b0 + lanes, blocks); ++b) {
      const In* values = x + b * 16;
      std::array<In, 16> padded{};
      if (n - b * 16 < 16) {
        std::copy_n(values, n - b * 16, padded.data());
        values = padded.data();
      }
      const auto i = static_cast<size_t>(b - b0);
      const float six = squared_error(values, factor[0][i], scale[0][i]);
      const float four = squared_error(values, factor[1][i], scale[1][i]);
      const size_t choice = four < six ? 1 : 0;
      codes[b] = code[choice][i];
      factors[b] = factor[choice][i];
    }
  }
}

void FourOverSixOf(Span x, const float* amax, Nvfp4Scales rule, uint8_t* codes, float* factors) {
  with_type(x, [&](const auto* p) { four_over_six_of(p, x.size, amax, rule, codes, factors); });
}

// ---- encoding -----------------------------------------------------------------------------------

template <class F, bool kStochastic, class In>
HWY_ATTR HWY_INLINE VI encode_vector(const In* x, VF factor, const uint32_t* random) {
  const VF scaled = hn::Mul(load(x), factor);
  if constexpr (kStochastic) {
    return encode_stochastic_lanes<F>(scaled, hn::LoadU(DU(), random));
  } else {
    return encode_lanes<F>(scaled);
  }
}

// Sixteen values: 16 bytes of codes, or 8 of packed E2M1.
template <class F, bool kStochastic, class In>
HWY_ATTR HWY_INLINE void encode_16(const In* x, VF factor, const uint32_t* random, uint8_t* codes) {
  HWY_ALIGN uint8_t bytes[16];
  uint8_t* out = F::kSignBit == 0x80 ? codes : bytes;
  for (size_t i = 0; i < 16; i += hn::Lanes(DF())) {
    store_bytes(encode_vector<F, kStochastic>(x + i, factor, random + (kStochastic ? i : 0)),
                out + i);
  }
  if constexpr (F::kSignBit != 0x80) {
    // Neighbouring codes a, b lie in a 16-bit lane as b << 8 | a; wanted is b << 4 | a.
    const hn::Full128<uint8_t> d8;
    const hn::Repartition<int16_t, decltype(d8)> d16;
    const auto pairs = hn::BitCast(d16, hn::Load(d8, bytes));
    const auto packed = hn::And(hn::Or(pairs, hn::ShiftRight<4>(pairs)), hn::Set(d16, 0xFF));
    const hn::Rebind<uint8_t, decltype(d16)> d8_half;
    hn::StoreU(hn::DemoteTo(d8_half, packed), d8_half, codes);
  }
}

template <class F, bool kStochastic, class In>
HWY_ATTR void encode_of(const In* x, int64_t n, const Encode& how, uint8_t* codes) {
  constexpr int kBytes16 = F::kSignBit == 0x80 ? 16 : 8;
  const int shift = how.block == 16 ? 0 : how.block == 32 ? 1 : 63;  // groups of 16 to a factor
  const int64_t groups = n / 16;
  for (int64_t g = 0; g < groups; ++g) {
    const VF factor = hn::Set(DF(), how.factors[g >> shift]);
    const uint32_t* random = kStochastic ? how.random + g * 16 : nullptr;
    encode_16<F, kStochastic>(x + g * 16, factor, random, codes + g * kBytes16);
  }
  const int64_t rest = n - groups * 16;
  if (rest == 0) return;
  std::array<In, 16> padded{};
  std::array<uint32_t, 16> random{};
  std::array<uint8_t, 16> out{};
  std::copy_n(x + groups * 16, rest, padded.data());
  if constexpr (kStochastic) std::copy_n(how.random + groups * 16, rest, random.data());
  const VF factor = hn::Set(DF(), how.factors[groups >> shift]);
  encode_16<F, kStochastic>(padded.data(), factor, random.data(), out.data());
  const int64_t bytes = F::kSignBit == 0x80 ? rest : (rest + 1) / 2;
  // The nibble behind an odd last value is zero even where the padding would round to NaN's code.
  if (F::kSignBit != 0x80 && rest % 2 != 0) out[bytes - 1] &= 0x0F;
  std::copy_n(out.data(), bytes, codes + groups * kBytes16);
}

template <class F>
void encode_element(Span x, const Encode& how, uint8_t* codes) {
  with_type(x, [&](const auto* p) {
    how.random != nullptr ? encode_of<F, true>(p, x.size, how, codes)
                          : encode_of<F, false>(p, x.size, how, codes);
  });
}

void EncodeSpan(Span x, const Encode& how, uint8_t* codes) {
  switch (how.element) {
    case ElementType::kE4M3:
      return encode_element<E4M3>(x, how, codes);
    case ElementType::kE5M2:
      return encode_element<E5M2>(x, how, codes);
    default:
      return encode_element<E2M1>(x, how, codes);
  }
}

const char* InstructionSet() { return hwy::TargetName(HWY_TARGET); }

}  // namespace halftone::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halftone::simd {

HWY_EXPORT(AmaxBits);
HWY_EXPORT(BlockAmax);
HWY_EXPORT(MxScalesOf);
HWY_EXPORT(Nvfp4ScalesOf);
HWY_EXPORT(FourOverSixOf);
HWY_EXPORT(EncodeSpan);
HWY_EXPORT(InstructionSet);

uint32_t amax_bits(Span x) { return HWY_DYNAMIC_DISPATCH(AmaxBits)(x); }

void block_amax(Span x, int block, float* amax) {
  HT_ASSERT(block == 16 || block == 32);
  HWY_DYNAMIC_DISPATCH(BlockAmax)(x, block, amax);
}

void mx_scales(const float* amax, int64_t blocks, MxScales rule, uint8_t* codes, float* factors) {
  HWY_DYNAMIC_DISPATCH(MxScalesOf)(amax, blocks, rule, codes, factors);
}

void nvfp4_scales(const float* amax, int64_t blocks, Nvfp4Scales rule, uint8_t* codes,
                  float* factors) {
  HWY_DYNAMIC_DISPATCH(Nvfp4ScalesOf)(amax, blocks, rule, codes, factors);
}

void four_over_six_scales(Span x, const float* amax, Nvfp4Scales rule, uint8_t* codes,
                          float* factors) {
  HWY_DYNAMIC_DISPATCH(FourOverSixOf)(x, amax, rule, codes, factors);
}

void encode(Span x, const Encode& how, uint8_t* codes) {
  HT_ASSERT(how.block == 0 || how.block == 16 || how.block == 32);
  HWY_DYNAMIC_DISPATCH(EncodeSpan)(x, how, codes);
}

bool available() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("sse4.1") != 0;
#else
  return true;
#endif
}

const char* instruction_set() { return HWY_DYNAMIC_DISPATCH(InstructionSet)(); }

}  // namespace halftone::simd
#endif
