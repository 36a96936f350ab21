// Lane-wise codecs for the instruction set that is being compiled. Included once per target.
#if defined(HALFTONE_KERNELS_CPU_SIMD_CODECS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFTONE_KERNELS_CPU_SIMD_CODECS_INL_H_
#undef HALFTONE_KERNELS_CPU_SIMD_CODECS_INL_H_
#else
#define HALFTONE_KERNELS_CPU_SIMD_CODECS_INL_H_
#endif

#include "halftone/numerics/minifloat.h"
#include "halftone/numerics/scale_rules.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace halftone::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;  // a block of 16 is a whole number of vectors
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;

inline HWY_ATTR VF load(const float* x) { return hn::LoadU(DF(), x); }
inline HWY_ATTR VF load(const bf16* x) {
  const hn::Rebind<uint16_t, DF> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(x));
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), bits)));
}
// halftone::to_float(fp16): Highway's conversion has no Inf and NaN on every instruction set.
inline HWY_ATTR VF load(const fp16* x) {
  const hn::Rebind<uint16_t, DF> d16;
  const auto raw = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(x));
  const VI bits = hn::BitCast(DI(), hn::PromoteTo(DU(), raw));
  const VI sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(DI(), 0x8000)));
  const VI mag = hn::And(bits, hn::Set(DI(), 0x7FFF));
  const auto is_special = hn::Gt(mag, hn::Set(DI(), 0x7BFF));
  const VI rebias = hn::IfThenElse(is_special, hn::Set(DI(), 224 << 23), hn::Set(DI(), 112 << 23));
  const VI normal = hn::Add(hn::ShiftLeft<13>(mag), rebias);
  const VF tiny = hn::Mul(hn::ConvertTo(DF(), mag), hn::Set(DF(), 0x1p-24f));
  const auto is_subnormal = hn::Lt(mag, hn::Set(DI(), 0x0400));
  return hn::BitCast(DF(),
                     hn::Or(sign, hn::IfThenElse(is_subnormal, hn::BitCast(DI(), tiny), normal)));
}

inline HWY_ATTR VI magnitude(VF x) {
  return hn::And(hn::BitCast(DI(), x), hn::Set(DI(), 0x7FFFFFFF));
}

// The code with its sign, given the rounded magnitude, which may exceed the largest code.
template <class F>
HWY_ATTR VI finish(VI code, VF x, VI mag) {
  constexpr int kSignShift = F::kSignBit == 0x80 ? 24 : 28;
  code = hn::Min(code, hn::Set(DI(), F::kMaxCode));
  const auto sign_bits = hn::ShiftRight<kSignShift>(hn::BitCast(DU(), x));
  const VI sign = hn::And(hn::BitCast(DI(), sign_bits), hn::Set(DI(), F::kSignBit));
  const auto is_nan = hn::Gt(mag, hn::Set(DI(), kF32Infinity));
  return hn::IfThenElse(is_nan, hn::Set(DI(), F::kNanCode), hn::Or(code, sign));
}

// halftone::encode<F>, lane by lane.
template <class F>
HWY_ATTR VI encode_lanes(VF x) {
  constexpr int kShift = 23 - F::kMantissaBits;
  constexpr int32_t kMinNormal = (128 - F::kBias) << 23;
  const VI mag = magnitude(x);
  // Normal: add half of the last place less one, plus the bit that decides ties, and cut.
  constexpr int32_t kRound = (1 << (kShift - 1)) - 1 - ((127 - F::kBias) << 23);
  const VI odd = hn::And(hn::ShiftRight<kShift>(mag), hn::Set(DI(), 1));
  const VI normal = hn::ShiftRight<kShift>(hn::Add(hn::Add(mag, hn::Set(DI(), kRound)), odd));
  // Subnormal: adding a number whose spacing is the format's makes the FPU round to it.
  constexpr int32_t kMagic = (128 - F::kBias - F::kMantissaBits + 23) << 23;
  const VF magic = hn::BitCast(DF(), hn::Set(DI(), kMagic));
  const VI subnormal =
      hn::Sub(hn::BitCast(DI(), hn::Add(hn::BitCast(DF(), mag), magic)), hn::Set(DI(), kMagic));
  const auto is_subnormal = hn::Lt(mag, hn::Set(DI(), kMinNormal));
  return finish<F>(hn::IfThenElse(is_subnormal, subnormal, normal), x, mag);
}

// halftone::encode_stochastic<F>, lane by lane.
template <class F>
HWY_ATTR VI encode_stochastic_lanes(VF x, hn::Vec<DU> random) {
  constexpr int kShift = 23 - F::kMantissaBits;
  constexpr int kMinNormalField = 128 - F::kBias;
  const VI mag = magnitude(x);
  const VI field = hn::ShiftRight<23>(mag);
  const VI zero = hn::Zero(DI());
  const VI below = hn::Max(hn::Sub(hn::Set(DI(), kMinNormalField), field), zero);
  const VI shift = hn::Min(hn::Add(below, hn::Set(DI(), kShift)), hn::Set(DI(), 56));
  const VI hidden = hn::IfThenElseZero(hn::Gt(field, zero), hn::Set(DI(), 0x800000));
  const auto significand = hn::BitCast(DU(), hn::Or(hn::And(mag, hn::Set(DI(), 0x7FFFFF)), hidden));
  const auto whole = hn::Shr(significand, hn::BitCast(DU(), hn::Min(shift, hn::Set(DI(), 31))));
  // The fraction in 32 bits: significand * 2^(32 - shift) modulo 2^32.
  const VI left = hn::Max(hn::Sub(hn::Set(DI(), 32), shift), zero);
  const VI right = hn::Max(hn::Sub(shift, hn::Set(DI(), 32)), zero);
  const auto fraction =
      hn::Shr(hn::Shl(significand, hn::BitCast(DU(), left)), hn::BitCast(DU(), right));
  const auto up = hn::VecFromMask(DU(), hn::Lt(random, fraction));  // all ones = -1
  const VI binade = hn::Max(hn::Sub(field, hn::Set(DI(), kMinNormalField)), zero);
  const VI base = hn::ShiftLeft<F::kMantissaBits>(binade);
  const VI code = hn::Sub(hn::Add(base, hn::BitCast(DI(), whole)), hn::BitCast(DI(), up));
  return finish<F>(code, x, mag);
}

// halftone::decode<F>, lane by lane. Codes beyond F's width must be zero.
template <class F>
HWY_ATTR VF decode_lanes(VI code) {
  constexpr int kM = F::kMantissaBits;
  constexpr int kSignShift = F::kSignBit == 0x80 ? 24 : 28;
  const VI mag = hn::And(code, hn::Set(DI(), F::kSignBit - 1));
  const VI sign = hn::ShiftLeft<kSignShift>(hn::And(code, hn::Set(DI(), F::kSignBit)));
  const VI rebias = hn::Set(DI(), (127 - F::kBias) << 23);
  VI bits = hn::Add(hn::ShiftLeft<23 - kM>(mag), rebias);
  // A product with 2^-k would do for both, but float subnormals are slow on some CPUs.
  const VF step = hn::BitCast(DF(), hn::Set(DI(), (128 - F::kBias - kM) << 23));
  const VI subnormal = hn::BitCast(DI(), hn::Mul(hn::ConvertTo(DF(), mag), step));
  bits = hn::IfThenElse(hn::Lt(mag, hn::Set(DI(), 1 << kM)), subnormal, bits);
  if constexpr (F::kMaxCode + 1 < F::kSignBit) {  // E2M1 has no specials
    const auto is_special = hn::Gt(mag, hn::Set(DI(), F::kMaxCode));
    VI special = hn::Set(DI(), 0x7FC00000);
    if constexpr (F::kOverflowCode != F::kNanCode) {
      const auto is_inf = hn::Eq(mag, hn::Set(DI(), F::kOverflowCode));
      special = hn::IfThenElse(is_inf, hn::Set(DI(), kF32Infinity), special);
    }
    bits = hn::IfThenElse(is_special, special, bits);
  }
  return hn::BitCast(DF(), hn::Or(bits, sign));
}

// halftone::to_bf16, lane by lane, stored as 16-bit values.
inline HWY_ATTR void store_bf16(VF x, bf16* out) {
  const auto bits = hn::BitCast(DU(), x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DU(), 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(DU(), 0x7FFF)), odd));
  const auto is_nan = hn::Gt(magnitude(x), hn::Set(DI(), kF32Infinity));
  const VI result = hn::IfThenElse(is_nan, hn::Set(DI(), 0x7FFF), hn::BitCast(DI(), rounded));
  const hn::Rebind<uint16_t, DF> d16;
  hn::StoreU(hn::DemoteTo(d16, result), d16, reinterpret_cast<uint16_t*>(out));
}

inline HWY_ATTR void store_bytes(VI codes, uint8_t* out) {
  const hn::Rebind<uint8_t, DF> d8;
  hn::StoreU(hn::DemoteTo(d8, codes), d8, out);
}

}  // namespace halftone::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
