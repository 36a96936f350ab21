// Forward: online softmax over tiles of keys (Dao et al., "FlashAttention", 2022). Backward: the
// softmax is recomputed from the logarithm of its sum; a block owns the rows it writes.
#include "halftone/kernels/cuda/attention_plain.h"
#include "halftone/kernels/cuda/attention_tiles.cuh"
#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/workspace.h"

namespace halftone::cuda {
namespace {

struct ForwardArgs {
  Attention a;
  Heads q, k, v, y;  // y.data is null where only the statistics are wanted
  Heads dy;
  float* logsum = nullptr;  // [B, H, T]: max + log(sum(exp)) of a row of scores; null: not wanted
  float* delta = nullptr;   // [B, H, T]: dy . y
  int64_t tiles = 0;        // of queries
};

// Tile of a block and the head it is of.
struct BlockPlace {
  int64_t tile, b, h;
};
__device__ BlockPlace block_place(int64_t tiles, int64_t heads) {
  const int64_t item = divide(blockIdx.x, tiles), b = divide(item, heads);
  return {static_cast<int64_t>(blockIdx.x) - item * tiles, b, item - b * heads};
}

template <int kTile, int kDim>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_kernel(const __grid_constant__ ForwardArgs p) {
  constexpr int R = kTile / 16, kFloats = Tile<kTile, kDim>::kFloats;
  extern __shared__ __align__(16) float shared[];
  float *q = shared, *kv = q + kFloats, *weights = kv + kFloats;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const auto [tile, b, h] = block_place(p.tiles, p.a.heads);
  const int64_t t0 = tile * kTile, group = h / (p.a.heads / p.a.groups);
  load_tile<kTile, kDim>(q, p.q, b, t0, h);

  Sums<kTile, kDim> sums = {};
  float largest[R], total[R];
  int64_t visible[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    largest[i] = -INFINITY;
    total[i] = 0;
    visible[i] = p.a.visible(b, t0 + ty + 16 * i);
  }
  const int64_t end = p.a.visible(b, min(t0 + kTile, p.a.queries) - 1);
  for (int64_t s0 = 0; s0 < end; s0 += kTile) {
    __syncthreads();  // nobody reads the last values any more
    load_tile<kTile, kDim>(kv, p.k, b, s0, group);
    __syncthreads();
    float s[R][R];
    dot_rows<kTile, kDim>(q, kv, s);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      float most = largest[i];
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const int64_t key = s0 + tx + 16 * j;
        s[i][j] = key < visible[i] ? p.a.score(s[i][j], b, h, t0 + ty + 16 * i, key) : -INFINITY;
        most = fmaxf(most, s[i][j]);
      }
      most = row_max(most);
      // A row that has seen no key yet would subtract infinities.
      const float around = most == -INFINITY ? 0.0f : most;
      const float keep = expf(largest[i] - around);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < R; ++j) {
        s[i][j] = expf(s[i][j] - around);
        sum += s[i][j];
        weights[(ty + 16 * i) * (kTile + 4) + tx + 16 * j] = s[i][j];
      }
      total[i] = fmaf(total[i], keep, row_sum(sum));
      largest[i] = most;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) sums[i][k] *= keep;
    }
    __syncthreads();
    load_tile<kTile, kDim>(kv, p.v, b, s0, group);
    __syncthreads();
    add_products<kTile, kDim>(weights, kv, sums);
  }

  float factors[R];
#pragma unroll
  for (int i = 0; i < R; ++i) factors[i] = total[i] > 0 ? 1.0f / total[i] : 0.0f;
  if (p.y.data != nullptr) store_sums<kTile, kDim>(p.y, b, t0, h, sums, factors);
  if (p.logsum == nullptr) return;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int64_t t = t0 + ty + 16 * i;
    float delta = 0;
    if (t < p.a.queries) {
      const int64_t from = p.dy.offset(b, t, h);
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        const int d = sums_column<kTile, kDim>(k);
        if (d < p.dy.dim)
          delta = fmaf(sums[i][k] * factors[i], load_value(p.dy.data, p.dy.dtype, from + d), delta);
      }
    }
    delta = row_sum(delta);
    if (tx == 0 && t < p.a.queries) {
      const int64_t at = (b * p.a.heads + h) * p.a.queries + t;
      p.logsum[at] = total[i] > 0 ? largest[i] + logf(total[i]) : 0.0f;
      if (p.delta != nullptr) p.delta[at] = delta;
    }
  }
}

// ---- gradient -----------------------------------------------------------------------------------

struct BackwardArgs {
  Attention a;
  Heads dy, q, k, v, dq, dk, dv;
  const float *logsum, *delta;
  int64_t query_tiles, key_tiles;
  void* dbias;  // as the problem's bias
  DType dbias_dtype;
};

// dq = scale * sum over keys of ds k, with ds = p (dy . v - delta)
template <int kTile, int kDim>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_dq_kernel(const __grid_constant__ BackwardArgs p) {
  constexpr int R = kTile / 16, kFloats = Tile<kTile, kDim>::kFloats;
  extern __shared__ __align__(16) float shared[];
  float *q = shared, *dy = q + kFloats, *k = dy + kFloats, *v = k + kFloats, *ds = v + kFloats;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const auto [tile, b, h] = block_place(p.query_tiles, p.a.heads);
  const int64_t t0 = tile * kTile, group = h / (p.a.heads / p.a.groups);
  load_tile<kTile, kDim>(q, p.q, b, t0, h);
  load_tile<kTile, kDim>(dy, p.dy, b, t0, h);
  Sums<kTile, kDim> sums = {};
  float logsum[R], delta[R], factors[R];
  int64_t visible[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int64_t t = t0 + ty + 16 * i, at = (b * p.a.heads + h) * p.a.queries + t;
    const bool inside = t < p.a.queries;
    logsum[i] = inside ? p.logsum[at] : 0;
    delta[i] = inside ? p.delta[at] : 0;
    visible[i] = inside ? p.a.visible(b, t) : 0;
    factors[i] = p.a.scale;
  }
  const int64_t end = p.a.visible(b, min(t0 + kTile, p.a.queries) - 1);
  for (int64_t s0 = 0; s0 < end; s0 += kTile) {
    __syncthreads();
    load_tile<kTile, kDim>(k, p.k, b, s0, group);
    load_tile<kTile, kDim>(v, p.v, b, s0, group);
    __syncthreads();
    float s[R][R], dp[R][R];
    dot_rows<kTile, kDim>(q, k, s);
    dot_rows<kTile, kDim>(dy, v, dp);
#pragma unroll
    for (int i = 0; i < R; ++i) {
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const int64_t t = t0 + ty + 16 * i, key = s0 + tx + 16 * j;
        const float weight =
            key < visible[i] ? expf(p.a.score(s[i][j], b, h, t, key) - logsum[i]) : 0.0f;
        ds[(ty + 16 * i) * (kTile + 4) + tx + 16 * j] = weight * (dp[i][j] - delta[i]);
      }
    }
    __syncthreads();
    add_products<kTile, kDim>(ds, k, sums);
  }
  store_sums<kTile, kDim>(p.dq, b, t0, h, sums, factors);
}

// dv = sum over queries of p dy, dk = scale * sum of ds q; rows are keys, columns queries.
template <int kTile, int kDim>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_dkv_kernel(const __grid_constant__ BackwardArgs p) {
  constexpr int R = kTile / 16, kFloats = Tile<kTile, kDim>::kFloats;
  extern __shared__ __align__(16) float shared[];
  float *k = shared, *v = k + kFloats, *q = v + kFloats, *dy = q + kFloats, *square = dy + kFloats;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const auto [tile, b, group] = block_place(p.key_tiles, p.a.groups);
  const int64_t s0 = tile * kTile, per_group = p.a.heads / p.a.groups;
  load_tile<kTile, kDim>(k, p.k, b, s0, group);
  load_tile<kTile, kDim>(v, p.v, b, s0, group);
  Sums<kTile, kDim> dk = {}, dv = {};
  for (int64_t h = group * per_group; h < (group + 1) * per_group; ++h) {
    for (int64_t t0 = 0; t0 < p.a.queries; t0 += kTile) {
      // The last query of a tile sees the most keys.
      if (p.a.visible(b, min(t0 + kTile, p.a.queries) - 1) <= s0) continue;
      __syncthreads();
      load_tile<kTile, kDim>(q, p.q, b, t0, h);
      load_tile<kTile, kDim>(dy, p.dy, b, t0, h);
      __syncthreads();
      float s[R][R], dp[R][R];
      dot_rows<kTile, kDim>(k, q, s);
      dot_rows<kTile, kDim>(v, dy, dp);
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const int64_t t = t0 + tx + 16 * j, at = (b * p.a.heads + h) * p.a.queries + t;
        const bool inside = t < p.a.queries;
        const float logsum = inside ? p.logsum[at] : 0, delta = inside ? p.delta[at] : 0;
        const int64_t visible = inside ? p.a.visible(b, t) : 0;
#pragma unroll
        for (int i = 0; i < R; ++i) {
          const int64_t key = s0 + ty + 16 * i;
          s[i][j] = key < visible ? expf(p.a.score(s[i][j], b, h, t, key) - logsum) : 0.0f;
          dp[i][j] = s[i][j] * (dp[i][j] - delta);
          square[(ty + 16 * i) * (kTile + 4) + tx + 16 * j] = s[i][j];
        }
      }
      __syncthreads();
      add_products<kTile, kDim>(square, dy, dv);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < R; ++i) {
#pragma unroll
        for (int j = 0; j < R; ++j) square[(ty + 16 * i) * (kTile + 4) + tx + 16 * j] = dp[i][j];
      }
      __syncthreads();
      add_products<kTile, kDim>(square, q, dk);
    }
  }
  float ones[R], scales[R];
#pragma unroll
  for (int i = 0; i < R; ++i) ones[i] = 1, scales[i] = p.a.scale;
  if (p.dk.data != nullptr) store_sums<kTile, kDim>(p.dk, b, s0, group, dk, scales);
  if (p.dv.data != nullptr) store_sums<kTile, kDim>(p.dv, b, s0, group, dv, ones);
}

// dbias = p (dy . v - delta), summed over the items that share it: a block has a square of a head.
template <int kTile, int kDim>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_dbias_kernel(const __grid_constant__ BackwardArgs p) {
  constexpr int R = kTile / 16, kFloats = Tile<kTile, kDim>::kFloats;
  extern __shared__ __align__(16) float shared[];
  float *q = shared, *dy = q + kFloats, *k = dy + kFloats, *v = k + kFloats;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int64_t row = divide(blockIdx.x, p.key_tiles), plane = divide(row, p.query_tiles);
  const int64_t s0 = (static_cast<int64_t>(blockIdx.x) - row * p.key_tiles) * kTile;
  const int64_t t0 = (row - plane * p.query_tiles) * kTile;
  const int64_t first = divide(plane, p.a.heads), h = plane - first * p.a.heads;
  const int64_t group = h / (p.a.heads / p.a.groups);
  const int64_t end = p.a.bias_stride != 0 ? first + 1 : p.a.batch;
  float sums[R][R] = {};
  for (int64_t b = first; b < end; ++b) {
    // The last query of a tile sees the most keys.
    if (p.a.visible(b, min(t0 + kTile, p.a.queries) - 1) <= s0) continue;
    __syncthreads();
    load_tile<kTile, kDim>(q, p.q, b, t0, h);
    load_tile<kTile, kDim>(dy, p.dy, b, t0, h);
    load_tile<kTile, kDim>(k, p.k, b, s0, group);
    load_tile<kTile, kDim>(v, p.v, b, s0, group);
    __syncthreads();
    float s[R][R], dp[R][R];
    dot_rows<kTile, kDim>(q, k, s);
    dot_rows<kTile, kDim>(dy, v, dp);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int64_t t = t0 + ty + 16 * i, at = (b * p.a.heads + h) * p.a.queries + t;
      if (t >= p.a.queries) continue;
      const float logsum = p.logsum[at], delta = p.delta[at];
      const int64_t visible = p.a.visible(b, t);
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const int64_t key = s0 + tx + 16 * j;
        if (key >= visible) continue;
        sums[i][j] += expf(p.a.score(s[i][j], b, h, t, key) - logsum) * (dp[i][j] - delta);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int64_t t = t0 + ty + 16 * i;
#pragma unroll
    for (int j = 0; j < R; ++j) {
      const int64_t key = s0 + tx + 16 * j;
      if (t >= p.a.queries || key >= p.a.keys) continue;
      store_value(p.dbias, p.dbias_dtype, (plane * p.a.queries + t) * p.a.keys + key, sums[i][j]);
    }
  }
}

// ---- launches -----------------------------------------------------------------------------------

template <class Args>
Attention problem_of(const Args& args) {
  const Shape &q = args.q.shape, &k = args.k.shape;
  Attention a{q[0],
              q[1],
              k[1],
              q[2],
              k[2],
              args.how.scale,
              args.how.causal,
              static_cast<const int32_t*>(args.lengths.data)};
  if (args.bias.data != nullptr) {
    a.bias = args.bias.data;
    a.bias_dtype = args.bias.dtype;
    a.bias_stride = bias_stride(args.bias.shape);
  }
  return a;
}

// Calls fn.template operator()<padded head size>().
template <class Fn>
void with_head_size(int64_t dim, const Fn& fn) {
  HT_ASSERT(dim <= 256);
  if (dim <= 32) return fn.template operator()<32>();
  if (dim <= 64) return fn.template operator()<64>();
  if (dim <= 128) return fn.template operator()<128>();
  return fn.template operator()<256>();
}

template <class Args>
void launch(void (*kernel)(Args), const Args& args, int64_t blocks, int floats, cudaStream_t on) {
  const int bytes = floats * 4;
  HT_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<static_cast<unsigned>(blocks), kAttentionThreads, static_cast<size_t>(bytes), on>>>(
      args);
  HT_CUDA_LAUNCHED();
}

constexpr int square_floats(int tile) { return tile * (tile + 4); }

void launch_forward(ForwardArgs p, cudaStream_t on) {
  with_head_size(p.q.dim, [&]<int kDim>() {
    constexpr int kTile = kDim <= 128 ? 64 : 32;
    p.tiles = (p.a.queries + kTile - 1) / kTile;
    launch(attention_kernel<kTile, kDim>, p, p.tiles * p.a.batch * p.a.heads,
           2 * Tile<kTile, kDim>::kFloats + square_floats(kTile), on);
  });
}

}  // namespace

void plain_attention(const AttentionArgs& args, const Stream& stream) {
  if (args.y.shape.numel() == 0) return;
  ForwardArgs p;
  p.a = problem_of(args);
  p.q = heads_of(args.q);
  p.k = heads_of(args.k);
  p.v = heads_of(args.v);
  p.y = heads_of(args.y);
  p.logsum = static_cast<float*>(args.statistics.data);
  launch_forward(p, context_of(stream).stream());
}

int64_t plain_attention_workspace(const AttentionArgs&) { return 0; }

int64_t plain_attention_grad_workspace(const AttentionGradArgs& args) {
  const Shape& q = args.q.shape;
  return float_workspace({q[0] * q[1] * q[2], q[0] * q[1] * q[2]});
}

void plain_attention_grad(const AttentionGradArgs& args, const Stream& stream) {
  const auto on = context_of(stream).stream();
  BackwardArgs p{};
  p.a = problem_of(args);
  p.dy = heads_of(args.dy);
  p.q = heads_of(args.q);
  p.k = heads_of(args.k);
  p.v = heads_of(args.v);
  const int64_t rows = p.a.batch * p.a.queries * p.a.heads;
  if (rows * p.q.dim > 0) {
    Workspace workspace(stream);
    ForwardArgs forward;
    forward.a = p.a;
    forward.q = p.q;
    forward.k = p.k;
    forward.v = p.v;
    forward.dy = p.dy;
    p.logsum = forward.logsum = workspace.floats(rows);
    p.delta = forward.delta = workspace.floats(rows);
    launch_forward(forward, on);
  }
  with_head_size(p.q.dim, [&]<int kDim>() {
    // What five tiles leave room for on GPUs of the desktop, too.
    constexpr int kTile = kDim <= 64 ? 64 : kDim == 128 ? 32 : 16;
    constexpr int kFloats = 4 * Tile<kTile, kDim>::kFloats + square_floats(kTile);
    p.query_tiles = (p.a.queries + kTile - 1) / kTile;
    p.key_tiles = (p.a.keys + kTile - 1) / kTile;
    if (args.dq.data != nullptr && args.dq.shape.numel() > 0) {
      p.dq = heads_of(args.dq);
      launch(attention_dq_kernel<kTile, kDim>, p, p.query_tiles * p.a.batch * p.a.heads, kFloats,
             on);
    }
    if (args.dbias.data != nullptr && args.dbias.shape.numel() > 0) {
      p.dbias = args.dbias.data;
      p.dbias_dtype = args.dbias.dtype;
      const int64_t items = p.a.bias_stride != 0 ? p.a.batch : 1;
      launch(attention_dbias_kernel<kTile, kDim>, p,
             p.query_tiles * p.key_tiles * p.a.heads * items, kFloats, on);
    }
    if (args.dk.data != nullptr) p.dk = heads_of(args.dk);
    if (args.dv.data != nullptr) p.dv = heads_of(args.dv);
    if ((p.dk.data != nullptr || p.dv.data != nullptr) && args.k.shape.numel() > 0) {
      launch(attention_dkv_kernel<kTile, kDim>, p, p.key_tiles * p.a.batch * p.a.groups, kFloats,
             on);
    }
  });
}

}  // namespace halftone::cuda
