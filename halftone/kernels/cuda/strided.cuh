// Functions of arrays that lie in any way: dimensions are merged on the host where every array
// allows, and the innermost one is walked by vectors where that is possible.
#pragma once

#include <array>

#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/elements.cuh"

namespace halftone::cuda {

using Strides = std::array<int64_t, Shape::kMaxRank>;

inline Strides packed_strides(const Shape& shape) {
  Strides strides{};
  int64_t stride = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

// Strides of `shape` seen as an array of `like`'s shape; 0 where it is broadcast.
inline Strides broadcast_strides(const Shape& shape, const Shape& like) {
  Strides strides{};
  int64_t stride = 1;
  for (int i = 1; i <= shape.rank(); ++i) {
    if (shape[-i] != 1) strides[like.rank() - i] = stride;
    stride *= shape[-i];
  }
  return strides;
}

// One array of a function; data is only written where the array is the result.
struct Side {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t strides[Shape::kMaxRank] = {};
};

inline Side side_of(const void* data, DType dtype, const Strides& strides) {
  Side side{const_cast<void*>(data), dtype, {}};
  for (int d = 0; d < Shape::kMaxRank; ++d) side.strides[d] = strides[d];
  return side;
}

// side[0] is the result. Of rank 1 at least.
template <int kSides>
struct StridedPlan {
  int rank = 0;
  int64_t dims[Shape::kMaxRank] = {};
  Side side[kSides];
  int64_t chunks = 0;  // of the innermost dimension, set by the launch

  int64_t inner() const { return dims[rank - 1]; }
  int64_t numel() const {
    int64_t count = 1;
    for (int d = 0; d < rank; ++d) count *= dims[d];
    return count;
  }
};

// Drops dimensions of size 1 and merges those that follow each other in memory on every side.
template <int kSides>
void merge_dims(StridedPlan<kSides>& plan) {
  int rank = 0;
  for (int d = 0; d < plan.rank; ++d) {
    if (plan.dims[d] == 1) continue;
    bool merges = rank > 0;
    for (const Side& s : plan.side)
      merges = merges && s.strides[rank - 1] == s.strides[d] * plan.dims[d];
    if (!merges) ++rank;
    const int to = rank - 1;
    plan.dims[to] = merges ? plan.dims[to] * plan.dims[d] : plan.dims[d];
    for (Side& s : plan.side) s.strides[to] = s.strides[d];
  }
  if (rank == 0) {
    rank = 1;
    plan.dims[0] = 1;
    for (Side& s : plan.side) s.strides[0] = 1;
  }
  plan.rank = rank;
}

template <int kSides>
bool allows_vectors(const StridedPlan<kSides>& plan, int count) {
  const int inner = plan.rank - 1;
  if (plan.side[0].strides[inner] != 1 || (plan.rank > 1 && plan.dims[inner] % count != 0))
    return false;
  for (const Side& s : plan.side) {
    if (s.strides[inner] == 0) continue;
    if (s.strides[inner] != 1 || !aligned_for(s.data, s.dtype, count)) return false;
    for (int d = 0; d < inner; ++d) {
      if (s.strides[d] % count != 0) return false;
    }
  }
  return true;
}

template <int N, int kSides, class Fn>
__global__ void strided_kernel(const __grid_constant__ StridedPlan<kSides> p, int64_t total,
                               const Fn fn) {
  const int64_t index = thread_index();
  if (index >= total) return;
  const int inner = p.rank - 1;
  int64_t outer = divide(index, p.chunks);
  const int64_t at = (index - outer * p.chunks) * N;
  int64_t offset[kSides];
#pragma unroll
  for (int s = 0; s < kSides; ++s) offset[s] = at * p.side[s].strides[inner];
  for (int d = inner - 1; d >= 0; --d) {
    const int64_t next = d == 0 ? 0 : divide(outer, p.dims[d]);
    const int64_t i = outer - next * p.dims[d];
    outer = next;
#pragma unroll
    for (int s = 0; s < kSides; ++s) offset[s] += i * p.side[s].strides[d];
  }
  const auto evaluate = [&](const float* v) {
    if constexpr (kSides == 1) return fn();
    if constexpr (kSides == 2) return fn(v[0]);
    if constexpr (kSides == 3) return fn(v[0], v[1]);
  };
  const int64_t left = p.dims[inner] - at;
  if (N > 1 && left < N) {  // the ragged end of one contiguous run
    for (int64_t i = 0; i < left; ++i) {
      float v[kSides];
      for (int s = 1; s < kSides; ++s) {
        v[s - 1] =
            load_value(p.side[s].data, p.side[s].dtype, offset[s] + i * p.side[s].strides[inner]);
      }
      store_value(p.side[0].data, p.side[0].dtype, offset[0] + i, evaluate(v));
    }
    return;
  }
  float in[kSides][N], out[N];
#pragma unroll
  for (int s = 1; s < kSides; ++s) {
    if (N > 1 && p.side[s].strides[inner] == 0) {
      const float value = load_value(p.side[s].data, p.side[s].dtype, offset[s]);
#pragma unroll
      for (int i = 0; i < N; ++i) in[s - 1][i] = value;
    } else {
      load_values(p.side[s].data, p.side[s].dtype, offset[s], in[s - 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float v[kSides];
#pragma unroll
    for (int s = 1; s < kSides; ++s) v[s - 1] = in[s - 1][i];
    out[i] = evaluate(v);
  }
  store_values(p.side[0].data, p.side[0].dtype, offset[0], out);
}

// result[i] = fn(inputs[i]...) for every index of a plan whose dimensions are merged.
template <int kSides, class Fn>
void launch_strided(StridedPlan<kSides> plan, const Fn& fn, const Stream& stream) {
  if (plan.numel() == 0) return;
  const int width = allows_vectors(plan, 8) ? 8 : 1;
  plan.chunks = (plan.inner() + width - 1) / width;
  const int64_t total = plan.numel() / plan.inner() * plan.chunks;
  constexpr int kThreads = 256;
  const auto on = context_of(stream).stream();
  if (width == 8) {
    strided_kernel<8><<<blocks_for(total, kThreads), kThreads, 0, on>>>(plan, total, fn);
  } else {
    strided_kernel<1><<<blocks_for(total, kThreads), kThreads, 0, on>>>(plan, total, fn);
  }
  HT_CUDA_LAUNCHED();
}

// Copies, fills and the resizing of pictures (copies.cu).
void fill_adamw(Kernels& table);
void fill_copies(Kernels& table);
// Sums over dimensions (sums.cu).
void fill_sums(Kernels& table);

}  // namespace halftone::cuda
