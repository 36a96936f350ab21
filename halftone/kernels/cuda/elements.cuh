// Elements of arrays as device code sees them: read and written as float, one or several at a
// time, whatever their dtype; and sums over threads whose order never changes.
#pragma once

#include <cstdint>

#include "halftone/numerics/bf16.h"
#include "halftone/tensor/dtype.h"

namespace halftone::cuda {

// Calls fn with a value of the type that holds a high-precision dtype.
template <class Fn>
void dispatch(DType dtype, const Fn& fn) {
  if (dtype == DType::kBF16) return fn(bf16{});
  if (dtype == DType::kF16) return fn(fp16{});
  return fn(float{});
}

inline bool loads_as_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}
inline bool stores_from_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }
inline int64_t size_of(DType dtype) { return bits_of(dtype) / 8; }

// Whether `count` elements from here on may be read or written by vectors of at most 16 bytes.
inline bool aligned_for(const void* data, DType dtype, int count) {
  const int64_t bytes = count * size_of(dtype);
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes < 16 ? bytes : 16) == 0;
}

// Most indices fit 32 bits, in which a division is several times cheaper.
__device__ inline int64_t divide(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

__device__ inline int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// ---- one element --------------------------------------------------------------------------------

__device__ inline float load_value(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::kBF16) return to_float(static_cast<const bf16*>(data)[i]);
  if (dtype == DType::kF16) return to_float(static_cast<const fp16*>(data)[i]);
  return static_cast<const float*>(data)[i];
}

__device__ inline void store_value(void* data, DType dtype, int64_t i, float value) {
  if (dtype == DType::kBF16) {
    static_cast<bf16*>(data)[i] = to_bf16(value);
  } else {
    static_cast<float*>(data)[i] = value;
  }
}

// ---- several, aligned as aligned_for() has it ---------------------------------------------------

// Two bf16 in a word, the first one low; the same bits as to_bf16().
__device__ inline uint32_t pack_bf16(float low, float high) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
#endif
}

__device__ inline void unpack_pair(uint32_t word, bf16, float& low, float& high) {
  low = bit_cast<float>(word << 16);
  high = bit_cast<float>(word & 0xFFFF0000u);
}
__device__ inline void unpack_pair(uint32_t word, fp16, float& low, float& high) {
  low = to_float(fp16{static_cast<uint16_t>(word)});
  high = to_float(fp16{static_cast<uint16_t>(word >> 16)});
}

template <int N>
__device__ void load_values(const float* x, float (&v)[N]) {
  static_assert(N % 4 == 0);
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(x + i);
    v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
  }
}

template <int N, class Half>
__device__ void load_values(const Half* x, float (&v)[N]) {
  static_assert(N == 4 || N % 8 == 0);
  if constexpr (N == 4) {
    const uint2 words = *reinterpret_cast<const uint2*>(x);
    unpack_pair(words.x, Half{}, v[0], v[1]);
    unpack_pair(words.y, Half{}, v[2], v[3]);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 8) {
      const uint4 words = *reinterpret_cast<const uint4*>(x + i);
      unpack_pair(words.x, Half{}, v[i], v[i + 1]);
      unpack_pair(words.y, Half{}, v[i + 2], v[i + 3]);
      unpack_pair(words.z, Half{}, v[i + 4], v[i + 5]);
      unpack_pair(words.w, Half{}, v[i + 6], v[i + 7]);
    }
  }
}

template <int N>
__device__ void load_values(const void* data, DType dtype, int64_t i, float (&v)[N]) {
  if constexpr (N == 1) {
    v[0] = load_value(data, dtype, i);
  } else if (dtype == DType::kBF16) {
    load_values(static_cast<const bf16*>(data) + i, v);
  } else if (dtype == DType::kF16) {
    load_values(static_cast<const fp16*>(data) + i, v);
  } else {
    load_values(static_cast<const float*>(data) + i, v);
  }
}

template <int N>
__device__ void store_values(float* y, const float (&v)[N]) {
  static_assert(N % 4 == 0);
#pragma unroll
  for (int i = 0; i < N; i += 4)
    *reinterpret_cast<float4*>(y + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
}

template <int N>
__device__ void store_values(bf16* y, const float (&v)[N]) {
  static_assert(N == 4 || N % 8 == 0);
  if constexpr (N == 4) {
    *reinterpret_cast<uint2*>(y) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 8) {
      *reinterpret_cast<uint4*>(y + i) =
          make_uint4(pack_bf16(v[i], v[i + 1]), pack_bf16(v[i + 2], v[i + 3]),
                     pack_bf16(v[i + 4], v[i + 5]), pack_bf16(v[i + 6], v[i + 7]));
    }
  }
}

template <int N>
__device__ void store_values(void* data, DType dtype, int64_t i, const float (&v)[N]) {
  if constexpr (N == 1) {
    store_value(data, dtype, i, v[0]);
  } else if (dtype == DType::kBF16) {
    store_values(static_cast<bf16*>(data) + i, v);
  } else {
    store_values(static_cast<float*>(data) + i, v);
  }
}

// ---- reductions: every thread gets the result ---------------------------------------------------

template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  return value;
}

__device__ inline uint32_t warp_max(uint32_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
  return value;
}

// Over kThreads threads that follow each other: a warp, or a whole block.
template <int kThreads, class T>
__device__ T team_sum(T value) {
  static_assert(kThreads >= 32 && kThreads <= 1024 && kThreads % 32 == 0);
  value = warp_sum(value);
  if constexpr (kThreads > 32) {
    __shared__ T parts[kThreads / 32];
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) value += parts[w];
    __syncthreads();  // parts may be written again
  }
  return value;
}

template <int kThreads>
__device__ uint32_t block_max(uint32_t value) {
  __shared__ uint32_t parts[kThreads / 32];
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) value = max(value, parts[w]);
  __syncthreads();
  return value;
}

}  // namespace halftone::cuda
