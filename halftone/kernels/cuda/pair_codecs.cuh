// Encoding by instructions where the GPU has them, for kernels of nvcc and of NVRTC alike: the same
// codes as encode() in numerics/minifloat.h, held to it by tests/cuda.
#pragma once

#include "halftone/numerics/minifloat.h"

namespace halftone::cuda {

// encode<E2M1>() for any x that is not NaN.
HT_HOST_DEVICE inline uint32_t encode_e2m1(float x) {
  const uint32_t sign = bit_cast<uint32_t>(x) >> 31 << 3;
  const float positive = bit_cast<float>(bit_cast<uint32_t>(x) & 0x7FFFFFFFu);
  const float magnitude = positive < E2M1::kMax ? positive : E2M1::kMax;
  // Below 1 the step is 1/2, which is the last place of a sum with 2^22; from 1 on, codes are the
  // exponent and one bit of mantissa, rounded as integers.
  const uint32_t small = bit_cast<uint32_t>(magnitude + 0x1p22f) - bit_cast<uint32_t>(0x1p22f);
  const uint32_t bits = bit_cast<uint32_t>(magnitude);
  const uint32_t large = ((bits + 0x1FFFFFu + ((bits >> 22) & 1u)) >> 22) - 252u;
  return (magnitude < 1.0f ? small : large) | sign;
}

// Two codes of 8 bits, the first one low.
template <class F>
__device__ __forceinline__ uint32_t encode_fp8_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short pair;
  if constexpr (F::kMantissaBits == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  return encode<F>(low) | static_cast<uint32_t>(encode<F>(high)) << 8;
#endif
}

}  // namespace halftone::cuda
