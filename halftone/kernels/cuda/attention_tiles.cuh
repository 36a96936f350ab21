// Tiles of attention in shared memory, and the products of two of them. 16 x 16 threads; thread
// (ty, tx) has rows ty + 16 i of a tile, and columns tx + 16 j of a square or 4 tx + 64 g + {0..3}
// of one that is a head wide. Rows are padded by 4 floats, so that 16 of them start in 16 banks.
#pragma once

#include "halftone/kernels/cuda/elements.cuh"
#include "halftone/kernels/op_args.h"

namespace halftone::cuda {

constexpr int kAttentionThreads = 256;

// Heads of a [B, T, H, D] array; a token's heads are packed.
struct Heads {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t tokens = 0, heads = 0, stride = 0;
  int dim = 0;
  bool vectors = false;  // 4 elements at a time

  __device__ int64_t offset(int64_t b, int64_t t, int64_t h) const {
    return (b * tokens + t) * stride + h * dim;
  }
};

inline Heads heads_of(const void* data, DType dtype, const Shape& shape, int64_t token_stride) {
  Heads x{const_cast<void*>(data),
          dtype,
          shape[1],
          shape[2],
          token_stride != 0 ? token_stride : shape[2] * shape[3],
          static_cast<int>(shape[3]),
          false};
  x.vectors = x.dim % 4 == 0 && x.stride % 4 == 0 && aligned_for(data, dtype, 4);
  return x;
}
inline Heads heads_of(const ConstView& x) {
  return heads_of(x.data, x.dtype, x.shape, x.token_stride);
}
inline Heads heads_of(const View& y) { return heads_of(y.data, y.dtype, y.shape, 0); }

// Of one problem: which keys a query sees.
struct Attention {
  int64_t batch, queries, keys, heads, groups;
  float scale;
  bool causal;
  const int32_t* lengths;      // [B] or null
  const void* bias = nullptr;  // [H, T, S], or [B, H, T, S], or null
  DType bias_dtype = DType::kF32;
  int64_t bias_stride = 0;  // from one item to the next

  // Of a query within the problem and a key that it sees, from the product of the two.
  __device__ float score(float product, int64_t b, int64_t h, int64_t t, int64_t s) const {
    const float scaled = product * scale;
    if (bias == nullptr || t >= queries) return scaled;
    return scaled + load_value(bias, bias_dtype, b * bias_stride + (h * queries + t) * keys + s);
  }
  // Keys 0 .. visible - 1.
  __device__ int64_t visible(int64_t b, int64_t t) const {
    int64_t count = lengths == nullptr ? keys : min(keys, int64_t{lengths[b]});
    if (causal) count = min(count, t + 1 + keys - queries);
    return max(count, int64_t{0});
  }
};

// kTile rows of a head of up to kDim values.
template <int kTile, int kDim>
struct Tile {
  static constexpr int kRow = kDim + 4;
  static constexpr int kFloats = kTile * kRow;
  static constexpr int kRows = kTile / 16;  // of a thread
  static constexpr int kGroups = kDim / 64 > 0 ? kDim / 64 : 1;
  static constexpr int kWide = kDim / 16 < 4 ? kDim / 16 : 4;  // columns of a group
};

// Tokens t0 .. of one head; zeros beyond the last token and beyond the head.
template <int kTile, int kDim>
__device__ void load_tile(float* tile, const Heads& x, int64_t b, int64_t t0, int64_t h) {
  constexpr int kRow = Tile<kTile, kDim>::kRow, kChunks = kDim / 4;
  for (int i = threadIdx.x; i < kTile * kChunks; i += kAttentionThreads) {
    const int row = i / kChunks, d = i % kChunks * 4;
    float v[4] = {};
    if (t0 + row < x.tokens && d < x.dim) {
      const int64_t from = x.offset(b, t0 + row, h) + d;
      if (x.vectors) {
        load_values(x.data, x.dtype, from, v);
      } else {
        for (int k = 0; k < 4; ++k)
          if (d + k < x.dim) v[k] = load_value(x.data, x.dtype, from + k);
      }
    }
    *reinterpret_cast<float4*>(tile + row * kRow + d) = make_float4(v[0], v[1], v[2], v[3]);
  }
}

// s[i][j] = a[row i] . b[row j]
template <int kTile, int kDim>
__device__ void dot_rows(const float* a, const float* b, float (&s)[kTile / 16][kTile / 16]) {
  constexpr int kRow = Tile<kTile, kDim>::kRow, R = kTile / 16;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int j = 0; j < R; ++j) s[i][j] = 0;
  }
#pragma unroll 4
  for (int d = 0; d < kDim; d += 4) {
    float4 x[R], y[R];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      x[i] = *reinterpret_cast<const float4*>(a + (ty + 16 * i) * kRow + d);
      y[i] = *reinterpret_cast<const float4*>(b + (tx + 16 * i) * kRow + d);
    }
#pragma unroll
    for (int i = 0; i < R; ++i) {
#pragma unroll
      for (int j = 0; j < R; ++j) {
        s[i][j] = fmaf(x[i].x, y[j].x, s[i][j]);
        s[i][j] = fmaf(x[i].y, y[j].y, s[i][j]);
        s[i][j] = fmaf(x[i].z, y[j].z, s[i][j]);
        s[i][j] = fmaf(x[i].w, y[j].w, s[i][j]);
      }
    }
  }
}

// A thread's part of a tile that is a head wide.
template <int kTile, int kDim>
using Sums = float[kTile / 16][kDim / 16];

// sums[row] += sum over n of p[row][n] x[n]; p has rows of kTile + 4.
template <int kTile, int kDim>
__device__ void add_products(const float* p, const float* x, Sums<kTile, kDim>& sums) {
  using T = Tile<kTile, kDim>;
  constexpr int R = T::kRows, W = T::kWide;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll 2
  for (int n = 0; n < kTile; n += 4) {
    float4 weights[R];
#pragma unroll
    for (int i = 0; i < R; ++i)
      weights[i] = *reinterpret_cast<const float4*>(p + (ty + 16 * i) * (kTile + 4) + n);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int g = 0; g < T::kGroups; ++g) {
        float v[W];
        const float* from = x + (n + k) * T::kRow + tx * W + 64 * g;
        if constexpr (W == 4) {
          const float4 four = *reinterpret_cast<const float4*>(from);
          v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        } else {
#pragma unroll
          for (int w = 0; w < W; ++w) v[w] = from[w];
        }
#pragma unroll
        for (int i = 0; i < R; ++i) {
          const float weight = k == 0   ? weights[i].x
                               : k == 1 ? weights[i].y
                               : k == 2 ? weights[i].z
                                        : weights[i].w;
#pragma unroll
          for (int w = 0; w < W; ++w) sums[i][g * W + w] = fmaf(weight, v[w], sums[i][g * W + w]);
        }
      }
    }
  }
}

// The column of a head that sums[i][k] is of.
template <int kTile, int kDim>
__device__ int sums_column(int k) {
  constexpr int W = Tile<kTile, kDim>::kWide;
  return static_cast<int>(threadIdx.x % 16) * W + 64 * (k / W) + k % W;
}

// Rows t0 .. of a head from sums, each row multiplied.
template <int kTile, int kDim>
__device__ void store_sums(const Heads& y, int64_t b, int64_t t0, int64_t h,
                           const Sums<kTile, kDim>& sums, const float (&factors)[kTile / 16]) {
  const int ty = threadIdx.x / 16;
#pragma unroll
  for (int i = 0; i < kTile / 16; ++i) {
    const int64_t t = t0 + ty + 16 * i;
    if (t >= y.tokens) continue;
    const int64_t to = y.offset(b, t, h);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const int d = sums_column<kTile, kDim>(k);
      if (d < y.dim) store_value(y.data, y.dtype, to + d, sums[i][k] * factors[i]);
    }
  }
}

// Over the 16 threads of a row.
__device__ inline float row_sum(float v) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, step);
  return v;
}
__device__ inline float row_max(float v) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  return v;
}

}  // namespace halftone::cuda
