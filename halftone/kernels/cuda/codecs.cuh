// The codecs of numerics/minifloat.h for several values at a time, by instructions where the GPU
// has them. The same codes and values, held to that header by tests/cuda.
#pragma once

#include <cmath>

#include "halftone/base/random.h"
#include "halftone/kernels/cuda/elements.cuh"
#include "halftone/kernels/cuda/pair_codecs.cuh"
#include "halftone/numerics/minifloat.h"

namespace halftone::cuda {

template <class F>
inline constexpr int kCodeBits = F::kSignBit == 0x8 ? 4 : 8;

// v * factor to nearest, packed. `finite` says that no product is NaN.
template <class F, int N>
__device__ void encode_values(const float (&v)[N], float factor, bool finite,
                              uint32_t (&words)[N * kCodeBits<F> / 32]) {
  constexpr int kPerWord = 32 / kCodeBits<F>;
#pragma unroll
  for (int w = 0; w < N / kPerWord; ++w) {
    uint32_t word = 0;
    if constexpr (kCodeBits<F> == 8) {
      word = encode_fp8_pair<F>(v[4 * w] * factor, v[4 * w + 1] * factor) |
             encode_fp8_pair<F>(v[4 * w + 2] * factor, v[4 * w + 3] * factor) << 16;
    } else if (finite) {
#pragma unroll
      for (int i = 0; i < kPerWord; ++i)
        word |= encode_e2m1(v[kPerWord * w + i] * factor) << (4 * i);
    } else {
#pragma unroll  // an index that is not a constant would put v into memory
      for (int i = 0; i < kPerWord; ++i)
        word |= static_cast<uint32_t>(encode<F>(v[kPerWord * w + i] * factor)) << (4 * i);
    }
    words[w] = word;
  }
}

// Not inlined: ten rounds for each four values would be most of a kernel's code.
__device__ __noinline__ inline uint4 philox_words(PhiloxKey key, uint64_t block) {
  const PhiloxBlock b = philox_block(key, block);
  return make_uint4(b.word[0], b.word[1], b.word[2], b.word[3]);
}

// The same, stochastically; value i uses word `first` + i of the key's sequence.
template <class F, int N>
__device__ void encode_values_stochastic(const float (&v)[N], float factor, PhiloxKey key,
                                         uint64_t first, uint32_t (&words)[N * kCodeBits<F> / 32]) {
  constexpr int kPerWord = 32 / kCodeBits<F>;
  uint4 random = philox_words(key, first / 4);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const auto place = static_cast<uint32_t>(first + i) & 3u;
    if (i > 0 && place == 0) random = philox_words(key, (first + i) / 4);
    const uint32_t word =
        place < 2 ? (place == 0 ? random.x : random.y) : (place == 2 ? random.z : random.w);
    const uint32_t code = encode_stochastic<F>(v[i] * factor, word);
    if (i % kPerWord == 0) words[i / kPerWord] = 0;
    words[i / kPerWord] |= code << (i % kPerWord * kCodeBits<F>);
  }
}

// ---- decoding -----------------------------------------------------------------------------------

template <class F>
__device__ void decode_fp8_pair(uint32_t pair, float& low, float& high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t halves;
  const auto codes = static_cast<uint16_t>(pair);
  if constexpr (F::kMantissaBits == 3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(codes));
  }
  asm("cvt.f32.f16 %0, %1;" : "=f"(low) : "h"(static_cast<uint16_t>(halves)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(high) : "h"(static_cast<uint16_t>(halves >> 16)));
#else
  low = decode<F>(static_cast<uint8_t>(pair));
  high = decode<F>(static_cast<uint8_t>(pair >> 8));
#endif
}

// Four codes of E2M1 in the low half of `codes`, as the bytes of bf16 values looked up in tables.
__device__ inline void decode_e2m1_four(uint32_t codes, float* v) {
  const uint32_t magnitudes = codes & 0x7777u;
  // bf16 of 0, .5, 1, 1.5, 2, 3, 4, 6: 0000 3F00 3F80 3FC0 4000 4040 4080 40C0
  const uint32_t high = __byte_perm(0x3F3F3F00u, 0x40404040u, magnitudes) |
                        __byte_perm(0x00008000u, 0u, (codes & 0x8888u) >> 3);
  const uint32_t low = __byte_perm(0xC0800000u, 0xC0804000u, magnitudes);
  unpack_pair(__byte_perm(low, high, 0x5140), bf16{}, v[0], v[1]);
  unpack_pair(__byte_perm(low, high, 0x7362), bf16{}, v[2], v[3]);
}

template <class F, int N>
__device__ void decode_values(const uint32_t (&words)[N * kCodeBits<F> / 32], float (&v)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    if constexpr (kCodeBits<F> == 8) {
      decode_fp8_pair<F>(words[i / 4] & 0xFFFFu, v[i], v[i + 1]);
      decode_fp8_pair<F>(words[i / 4] >> 16, v[i + 2], v[i + 3]);
    } else {
      decode_e2m1_four(words[i / 8] >> (i % 8 * 4), v + i);
    }
  }
}

}  // namespace halftone::cuda
