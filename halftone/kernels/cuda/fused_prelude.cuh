// What generated kernels are made of (see fused_source.h). Compiled at run time by NVRTC, which has
// no headers of its own: this file and those of numerics/ travel inside the program.
#pragma once

#include "halftone/kernels/cuda/fused_params.h"
#include "halftone/kernels/cuda/pair_codecs.cuh"
#include "halftone/numerics/gelu.h"
#include "halftone/numerics/scale_rules.h"
#include "halftone/numerics/swizzle_offset.h"

namespace halftone::fused {

// Neighbouring values that are moved at once, 16 bytes at a time where they fill them.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T values[N];
};

// From rows, which are read once: not kept in the cache that what rows share should stay in.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> load_once(const T* from) {
  Pack<T, N> pack;
  if constexpr (sizeof pack % 16 == 0) {
    unsigned* to = reinterpret_cast<unsigned*>(&pack);
    const char* at = reinterpret_cast<const char*>(from);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof pack); i += 16) {
      asm("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(to[i / 4]), "=r"(to[i / 4 + 1]), "=r"(to[i / 4 + 2]), "=r"(to[i / 4 + 3])
          : "l"(at + i));
    }
  } else {
    pack = *reinterpret_cast<const Pack<T, N>*>(from);
  }
  return pack;
}
// What rows share. Volatile where it is read for every row again: else the compiler would keep it
// in registers that more rows need.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> load_shared(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <class T, int N>
__device__ __forceinline__ Pack<T, N> load_again(const T* from) {
  Pack<T, N> pack;
  if constexpr (sizeof pack % 16 == 0) {
    unsigned* to = reinterpret_cast<unsigned*>(&pack);
    const char* at = reinterpret_cast<const char*>(from);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof pack); i += 16) {
      asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[i / 4]), "=r"(to[i / 4 + 1]), "=r"(to[i / 4 + 2]), "=r"(to[i / 4 + 3])
                   : "l"(at + i));
    }
  } else {
    pack = *reinterpret_cast<const Pack<T, N>*>(from);
  }
  return pack;
}

__device__ __forceinline__ unsigned bf16_pair(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return to_bf16(low).bits | static_cast<unsigned>(to_bf16(high).bits) << 16;
#endif
}
__device__ __forceinline__ float rounded(float x) {
  return __uint_as_float(bf16_pair(x, 0.0f) << 16);
}
template <int N>
__device__ __forceinline__ void round_all(float (&x)[N]) {
  if constexpr (N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const unsigned pair = bf16_pair(x[i], x[i + 1]);
      x[i] = __uint_as_float(pair << 16);
      x[i + 1] = __uint_as_float(pair & 0xFFFF0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = rounded(x[i]);
  }
}

template <class T, int N>
__device__ __forceinline__ void unpack(const Pack<T, N>& from, float (&to)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = to_float(from.values[i]);
}
// Pairs by word: a shift and a mask, where single values would be cut out first.
template <int N>
  requires(N % 2 == 0)
__device__ __forceinline__ void unpack(const Pack<bf16, N>& from, float (&to)[N]) {
  const unsigned* words = reinterpret_cast<const unsigned*>(&from);
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    to[i] = __uint_as_float(words[i / 2] << 16);
    to[i + 1] = __uint_as_float(words[i / 2] & 0xFFFF0000u);
  }
}

template <int N>
__device__ __forceinline__ void store(float* to, const float (&x)[N]) {
  Pack<float, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.values[i] = x[i];
  *reinterpret_cast<Pack<float, N>*>(to) = pack;
}
template <int N>
__device__ __forceinline__ void store(bf16* to, const float (&x)[N]) {
  if constexpr (N % 2 == 0) {
    Pack<unsigned, N / 2> pack;
#pragma unroll
    for (int i = 0; i < N; i += 2) pack.values[i / 2] = bf16_pair(x[i], x[i + 1]);
    *reinterpret_cast<Pack<unsigned, N / 2>*>(to) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = to_bf16(x[i]);
  }
}

template <class F, int N>
__device__ __forceinline__ void store_codes(unsigned char* to, const float (&x)[N], float factor) {
  if constexpr (N % 2 == 0) {
    Pack<unsigned short, N / 2> pack;
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      pack.values[i / 2] =
          static_cast<unsigned short>(cuda::encode_fp8_pair<F>(x[i] * factor, x[i + 1] * factor));
    }
    *reinterpret_cast<Pack<unsigned short, N / 2>*>(to) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = encode<F>(x[i] * factor);
  }
}

// NVFP4: N codes of half a byte, where they are at least two; a single one waits for its
// neighbour's. All lanes come here; `inside` says whose values count.
template <int N>
__device__ __forceinline__ void store_nibbles(unsigned char* to, const float (&x)[N], float factor,
                                              bool finite, bool inside) {
  unsigned codes = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float value = x[i] * factor;
    codes |= (finite ? cuda::encode_e2m1(value) : encode<E2M1>(value)) << (4 * i);
  }
  if constexpr (N == 1) {
    codes |= __shfl_xor_sync(~0u, codes, 1) << 4;
    if (inside && threadIdx.x % 2 == 0) *to = static_cast<unsigned char>(codes);
  } else if (inside) {
    Pack<unsigned char, N / 2> pack;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) pack.values[i] = static_cast<unsigned char>(codes >> (8 * i));
    *reinterpret_cast<Pack<unsigned char, N / 2>*>(to) = pack;
  }
}

__device__ __forceinline__ bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7FFFFFFFu) < 0x7F800000u;
}

// Where the scale of a row's block lies. In tiles, the padding behind a row's last scale is zeroed:
// products read it.
template <bool kSwizzled>
__device__ __forceinline__ void store_scale(unsigned char* to, long long row, int block, int blocks,
                                            unsigned char scale) {
  if constexpr (!kSwizzled) {
    to[row * blocks + block] = scale;
  } else {
    to[swizzled_scale_offset(row, block, blocks)] = scale;
    for (int pad = block + 1; block + 1 == blocks && pad % 4 != 0; ++pad) {
      to[swizzled_scale_offset(row, pad, blocks)] = 0;
    }
  }
}

// A kernel may be started before the one that writes its inputs has ended.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct Sum {
  static __device__ __forceinline__ float zero() { return 0.0f; }
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
// Of magnitudes; NaN wins over everything.
struct Largest {
  static __device__ __forceinline__ float zero() { return 0.0f; }
  static __device__ __forceinline__ float of(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(a)), "f"(fabsf(b)));
    return larger;
#else
    const unsigned x = magnitude_bits(a), y = magnitude_bits(b);
    return __uint_as_float(x > y ? x : y);
#endif
  }
};

// Among neighbouring lanes; kLanes is a power of two.
template <class Op, int kLanes, class T>
__device__ __forceinline__ T reduce_lanes(T x) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) x = Op::of(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// Among all threads of a block. `memory` holds a value per warp and must not be written again
// before another barrier.
template <class Op, int kThreads, class T>
__device__ __forceinline__ T reduce_block(T x, T* memory) {
  x = reduce_lanes<Op, 32>(x);
  if (threadIdx.x % 32 == 0) memory[threadIdx.x / 32] = x;
  __syncthreads();
  // Every warp sums what the warps left, which takes fewer instructions than every thread doing it.
  constexpr int kWarps = kThreads / 32, kLanes = kWarps <= 8 ? 8 : kWarps <= 16 ? 16 : 32;
  const int lane = threadIdx.x % kLanes;
  return reduce_lanes<Op, kLanes>(lane < kWarps ? memory[lane] : Op::zero());
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
// Within a few units of float's last place: for results that are rounded to bf16.
__device__ __forceinline__ float quick_silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

}  // namespace halftone::fused
