// bfloat16 and IEEE half as bit patterns, with conversions that agree with CUDA's.
#pragma once

#include <cstdint>

#include "halftone/base/host_device.h"

namespace halftone {

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

inline constexpr uint32_t kF32Infinity = 0x7F800000u;

HT_HOST_DEVICE constexpr uint32_t magnitude_bits(float x) {
  return bit_cast<uint32_t>(x) & 0x7FFFFFFFu;
}

HT_HOST_DEVICE constexpr float to_float(float x) { return x; }

HT_HOST_DEVICE constexpr float to_float(bf16 x) {
  return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

HT_HOST_DEVICE constexpr float to_float(fp16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7FFFu;
  if (magnitude < 0x0400u) {  // subnormal: an integer multiple of 2^-24
    return bit_cast<float>(sign | bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
  }
  const uint32_t rebias = magnitude >= 0x7C00u ? 224u : 112u;  // Inf and NaN keep their meaning
  return bit_cast<float>(sign | ((magnitude << 13) + (rebias << 23)));
}

// To nearest even. Every NaN becomes 0x7FFF, as the GPU's conversion instruction has it.
HT_HOST_DEVICE constexpr bf16 to_bf16(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > kF32Infinity) return {0x7FFF};
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace halftone
