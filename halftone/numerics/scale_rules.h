// How a scale follows from the largest magnitude it covers. A scale is what multiplies when
// dequantizing; quantizing multiplies by its reciprocal, taken once per scale. On host and device.
#pragma once

#include <cstdint>

#include "halftone/base/host_device.h"
#include "halftone/numerics/bf16.h"
#include "halftone/numerics/minifloat.h"

namespace halftone {

// How MXFP8 rounds the exponent of a block's scale. RCeil is what cuBLAS, TransformerEngine and
// most tools use: the smallest power of two that keeps the block from saturating.
enum class ExponentRounding : uint8_t { kFloor, kCeil, kEven, kRCeil };

// ---- E8M0: an exponent with bias 127, no zero, 0xFF is NaN --------------------------------------

HT_HOST_DEVICE constexpr float decode_e8m0(uint8_t code) {
  if (code == 0xFF) return bit_cast<float>(0x7FC00000u);
  if (code == 0) return bit_cast<float>(0x00400000u);  // 2^-127, subnormal
  return bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// The smallest power of two that is at least |x|; 0 and tiny values give 2^-127.
HT_HOST_DEVICE constexpr uint8_t encode_e8m0(float x) {
  const uint32_t magnitude = magnitude_bits(x);
  if (magnitude > kF32Infinity) return 0xFF;
  if (magnitude == kF32Infinity) return 0xFE;
  const uint32_t field = magnitude >> 23;
  const uint32_t mantissa = magnitude & 0x7FFFFFu;
  // A subnormal above 2^-127 (mantissa 0x400000) needs 2^-126; a normal needs any mantissa bit.
  const uint32_t up = field == 0 ? (mantissa > 0x400000u ? 1u : 0u) : (mantissa != 0 ? 1u : 0u);
  return static_cast<uint8_t>(field + up < 0xFE ? field + up : 0xFE);
}

// 1 / decode_e8m0(code), exact for every code.
HT_HOST_DEVICE constexpr float reciprocal_e8m0(uint8_t code) {
  return code == 0xFF ? bit_cast<float>(0x7FC00000u)
                      : decode_e8m0(static_cast<uint8_t>(254 - code));
}

// The E8M0 scale of an MX block whose largest magnitude is amax. NaN marks the whole block NaN.
template <class F>
HT_HOST_DEVICE constexpr uint8_t mx_scale(float amax, ExponentRounding rounding) {
  uint32_t bits = magnitude_bits(amax);
  if (bits > kF32Infinity) return 0xFF;
  if (bits == kF32Infinity) return 0xFE;
  if (rounding == ExponentRounding::kEven) bits += 1u << (23 - F::kMantissaBits - 1);
  constexpr uint32_t kMaxMantissa = bit_cast<uint32_t>(F::kMax) & 0x7FFFFFu;
  const uint32_t mantissa = bits & 0x7FFFFFu;
  uint32_t up = 0;
  if (rounding == ExponentRounding::kCeil && mantissa != 0) up = 1;
  // amax / max exceeds a power of two exactly when amax's mantissa exceeds max's.
  if (rounding == ExponentRounding::kRCeil && mantissa > kMaxMantissa) up = 1;
  const int exponent = static_cast<int>((bits >> 23) + up) - F::kMaxExponent;
  return static_cast<uint8_t>(exponent > 0 ? exponent : 0);
}

// ---- FP8 with an F32 scale ----------------------------------------------------------------------

// Below this, 1/scale would overflow or depend on how a device treats subnormals.
inline constexpr float kMinScale = 0x1p-126f;

HT_HOST_DEVICE constexpr bool is_positive_finite(float x) {
  return x > 0.0f && x <= 0x1.fffffep127f;
}

// amax / largest; 1 where amax is zero, infinite or NaN, so that no row divides by zero.
HT_HOST_DEVICE constexpr float amax_scale(float amax, float largest, float floor = kMinScale) {
  if (!is_positive_finite(amax)) return 1.0f;
  const float scale = amax / largest;
  return scale > floor ? scale : floor;
}

// ---- NVFP4: an E4M3 scale per block under one F32 scale g ---------------------------------------

// Keeps (smallest block scale) * g, and so its reciprocal, a normal number.
inline constexpr float kMinGlobalScale = 0x1p-117f;

// The largest block scale that g leaves room for. 4-over-6 may enlarge a scale by 1.5.
inline constexpr float kNvfp4MaxBlockScale = 448.0f;
inline constexpr float kFourOverSixMaxBlockScale = 256.0f;

HT_HOST_DEVICE constexpr float nvfp4_global_scale(float amax, float max_block_scale) {
  return amax_scale(amax, max_block_scale * E2M1::kMax, kMinGlobalScale);
}

// `target` is the magnitude that the block's largest value maps to: 6, or 4 for 4-over-6.
HT_HOST_DEVICE constexpr uint8_t nvfp4_block_scale(float block_amax, float target, float g,
                                                   float lower_clamp) {
  const float ideal = (block_amax / target) / g;
  return encode<E4M3>(ideal < lower_clamp ? lower_clamp : ideal);
}

// What multiplies an element before rounding: 1 / (b * g), and 0 for a block whose scale is 0.
HT_HOST_DEVICE constexpr float nvfp4_reciprocal(float block_scale, float g) {
  const float scale = block_scale * g;
  return scale == 0.0f ? 0.0f : 1.0f / scale;
}

}  // namespace halftone
