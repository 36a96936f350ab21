// What one thread computes from one float, on the device or the host: every codec and rule.
#pragma once

#include <cstdint>
#include <vector>

#include "halftone/base/random.h"
#include "halftone/numerics/bf16.h"
#include "halftone/numerics/minifloat.h"
#include "halftone/numerics/scale_rules.h"
#include "halftone/numerics/swizzle.h"

namespace halftone::test {

struct Results {
  uint8_t e4m3, e4m3_special, e5m2, e5m2_special, e2m1, e8m0;
  uint8_t e4m3_stochastic, e5m2_stochastic, e2m1_stochastic;
  uint8_t mx[4], mx_e5m2[4];
  uint8_t block6, block4, block_clamped;
  uint16_t bf16_bits;
  uint32_t random;
  uint32_t scale, global, factor;  // bits of floats
  uint32_t decoded[4];             // of the low byte of x, as E4M3, E5M2, E2M1, E8M0
  uint32_t half;                   // of the low 16 bits of x, as fp16
  uint64_t swizzled;

  bool operator==(const Results&) const = default;
};

// NaN has many encodings in float arithmetic; they all count as one here.
HT_HOST_DEVICE inline uint32_t canonical(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  return (bits & 0x7FFFFFFFu) > kF32Infinity ? 0x7FC00000u : bits;
}

HT_HOST_DEVICE inline Results compute(float x, uint64_t index) {
  Results r{};
  const uint32_t bits = bit_cast<uint32_t>(x);
  r.random = philox_word({12345, 6}, index);
  r.e4m3 = encode<E4M3>(x);
  r.e4m3_special = encode<E4M3>(x, Overflow::kSpecial);
  r.e5m2 = encode<E5M2>(x);
  r.e5m2_special = encode<E5M2>(x, Overflow::kSpecial);
  r.e2m1 = encode<E2M1>(x);
  r.e8m0 = encode_e8m0(x);
  r.e4m3_stochastic = encode_stochastic<E4M3>(x, r.random);
  r.e5m2_stochastic = encode_stochastic<E5M2>(x, r.random);
  r.e2m1_stochastic = encode_stochastic<E2M1>(x, r.random);
  for (int i = 0; i < 4; ++i) {
    r.mx[i] = mx_scale<E4M3>(x, static_cast<ExponentRounding>(i));
    r.mx_e5m2[i] = mx_scale<E5M2>(x, static_cast<ExponentRounding>(i));
  }
  const float amax = bit_cast<float>(bits & 0x7FFFFFFFu);
  const float scale = amax_scale(amax, E4M3::kMax);
  const float g = nvfp4_global_scale(amax, kNvfp4MaxBlockScale);
  r.block6 = nvfp4_block_scale(amax * 0.37f, 6.0f, g, 0.0f);
  r.block4 = nvfp4_block_scale(amax * 0.37f, 4.0f, g, 0.0f);
  r.block_clamped = nvfp4_block_scale(amax * 1e-5f, 6.0f, g, 0x1p-6f);
  r.bf16_bits = to_bf16(x).bits;
  r.scale = canonical(scale);
  r.global = canonical(g);
  r.factor = canonical(nvfp4_reciprocal(decode<E4M3>(r.block6), g));
  const auto low = static_cast<uint8_t>(bits);
  r.decoded[0] = canonical(decode<E4M3>(low));
  r.decoded[1] = canonical(decode<E5M2>(low));
  r.decoded[2] = canonical(decode<E2M1>(low & 0xF));
  r.decoded[3] = canonical(decode_e8m0(low));
  r.half = canonical(to_float(fp16{static_cast<uint16_t>(bits)}));
  r.swizzled = static_cast<uint64_t>(swizzled_scale_offset(bits % 5000, bits / 5000 % 97, 97));
  return r;
}

// Whether there is a GPU that this was compiled for.
bool gpu_present();
std::vector<Results> compute_on_device(const std::vector<float>& x);

}  // namespace halftone::test
