// Codecs of the 8- and 4-bit element formats E4M3, E5M2 and E2M1, callable on host and device.
// Integer arithmetic only, so every compiler and device gives the same bits; all SIMD and CUDA
// quantizers are held to these functions code by code.
#pragma once

#include <cstdint>

#include "halftone/base/host_device.h"
#include "halftone/numerics/bf16.h"

namespace halftone {

// What becomes of a value that rounds beyond the largest finite one.
enum class Overflow { kSaturate, kSpecial };

struct E4M3 {  // "FN": no infinities, NaN is S.1111.111
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr uint32_t kSignBit = 0x80;
  static constexpr uint32_t kMaxCode = 0x7E;
  static constexpr uint32_t kNanCode = 0x7F;
  static constexpr uint32_t kOverflowCode = 0x7F;  // NaN stands for overflow
  static constexpr float kMax = 448.0f;
  static constexpr int kMaxExponent = 8;
};

struct E5M2 {
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr uint32_t kSignBit = 0x80;
  static constexpr uint32_t kMaxCode = 0x7B;
  static constexpr uint32_t kNanCode = 0x7F;
  static constexpr uint32_t kOverflowCode = 0x7C;  // Inf
  static constexpr float kMax = 57344.0f;
  static constexpr int kMaxExponent = 15;
};

struct E2M1 {  // no specials at all: NaN becomes the largest value
  static constexpr int kMantissaBits = 1;
  static constexpr int kBias = 1;
  static constexpr uint32_t kSignBit = 0x8;
  static constexpr uint32_t kMaxCode = 0x7;
  static constexpr uint32_t kNanCode = 0x7;
  static constexpr uint32_t kOverflowCode = 0x7;
  static constexpr float kMax = 6.0f;
  static constexpr int kMaxExponent = 2;
};

namespace detail {

// A positive float split for rounding: value = significand * 2^-shift in units of the format's
// spacing at that magnitude, plus the code of the binade's start.
struct Split {
  uint32_t significand;  // 24 bits
  int shift;             // 20..56
  uint32_t base;         // code added to the rounded significand
};

template <class F>
HT_HOST_DEVICE constexpr Split split_for(uint32_t magnitude) {
  constexpr int kMinNormalField = 128 - F::kBias;  // float exponent field of the smallest normal
  const int field = static_cast<int>(magnitude >> 23);
  const uint32_t significand = (magnitude & 0x7FFFFFu) | (field == 0 ? 0u : 0x800000u);
  if (field >= kMinNormalField) {
    const auto binade = static_cast<uint32_t>(field - kMinNormalField);
    return {significand, 23 - F::kMantissaBits, binade << F::kMantissaBits};
  }
  const int shift = 23 - F::kMantissaBits + (kMinNormalField - field);
  return {significand, shift < 56 ? shift : 56, 0};
}

template <class F>
HT_HOST_DEVICE constexpr uint8_t finish(uint32_t code, bool negative, Overflow overflow) {
  if (code > F::kMaxCode) code = overflow == Overflow::kSaturate ? F::kMaxCode : F::kOverflowCode;
  return static_cast<uint8_t>(code | (negative ? F::kSignBit : 0u));
}

}  // namespace detail

// To nearest, ties to even.
template <class F>
HT_HOST_DEVICE constexpr uint8_t encode(float x, Overflow overflow = Overflow::kSaturate) {
  const uint32_t magnitude = magnitude_bits(x);
  if (magnitude > kF32Infinity) return F::kNanCode;
  const detail::Split s = detail::split_for<F>(magnitude);
  // Beyond 25 bits below the last place, even 1.111... is less than half of it.
  const int shift = s.shift < 26 ? s.shift : 26;
  const uint32_t kept = s.significand >> shift;
  const uint32_t half = 1u << (shift - 1);
  const uint32_t rounded = (s.significand + half - 1 + (kept & 1u)) >> shift;
  return detail::finish<F>(s.base + rounded, bit_cast<uint32_t>(x) >> 31 != 0, overflow);
}

// Up with a probability equal to the fraction of a step by which x lies above the lower
// neighbour (to 2^-32), so that the expectation is x. `random` holds 32 uniform bits.
template <class F>
HT_HOST_DEVICE constexpr uint8_t encode_stochastic(float x, uint32_t random) {
  const uint32_t magnitude = magnitude_bits(x);
  if (magnitude > kF32Infinity) return F::kNanCode;
  const detail::Split s = detail::split_for<F>(magnitude);
  const uint64_t fixed = (uint64_t{s.significand} << 32) >> s.shift;  // 32 fractional bits
  const uint32_t up = random < static_cast<uint32_t>(fixed) ? 1u : 0u;
  const uint32_t code = s.base + static_cast<uint32_t>(fixed >> 32) + up;
  return detail::finish<F>(code, bit_cast<uint32_t>(x) >> 31 != 0, Overflow::kSaturate);
}

template <class F>
HT_HOST_DEVICE constexpr float decode(uint8_t code) {
  constexpr int kM = F::kMantissaBits;
  const uint32_t magnitude = code & (F::kSignBit - 1);
  const uint32_t sign = (code & F::kSignBit) != 0 ? 0x80000000u : 0u;
  uint32_t bits = 0;
  if (magnitude > F::kMaxCode) {  // no code of E2M1 is
    const bool infinite = F::kOverflowCode != F::kNanCode && magnitude == F::kOverflowCode;
    bits = infinite ? kF32Infinity : 0x7FC00000u;
  } else if (magnitude < (1u << kM)) {  // subnormal
    constexpr float kStep = bit_cast<float>(static_cast<uint32_t>(128 - F::kBias - kM) << 23);
    bits = bit_cast<uint32_t>(static_cast<float>(magnitude) * kStep);
  } else {
    bits = (magnitude << (23 - kM)) + (static_cast<uint32_t>(127 - F::kBias) << 23);
  }
  return bit_cast<float>(sign | bits);
}

// NVFP4 stores two values in a byte, the first one in the low nibble.
HT_HOST_DEVICE constexpr uint8_t pack_e2m1(uint8_t first, uint8_t second) {
  return static_cast<uint8_t>((first & 0xF) | (second << 4));
}

}  // namespace halftone
