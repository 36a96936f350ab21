// What the norms share: rows and how teams of threads walk them.
#pragma once

#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/elements.cuh"
#include "halftone/kernels/workspace.h"

namespace halftone::cuda {

// An array that a kernel reads, and one that it writes unless its data is null.
struct Input {
  const void* data = nullptr;
  DType dtype = DType::kF32;
};
struct Output {
  void* data = nullptr;
  DType dtype = DType::kF32;
};
inline Input input_of(const ConstView& x) { return {x.data, x.dtype}; }
inline Output output_of(const View& y) { return {y.data, y.dtype}; }

inline bool takes_input(const ConstView& x) { return x.data == nullptr || loads_as_float(x.dtype); }
inline bool takes_output(const View& y) { return y.data == nullptr || stores_from_float(y.dtype); }
inline bool vectors_of(const Input& x, int count) {
  return x.data == nullptr || aligned_for(x.data, x.dtype, count);
}
inline bool vectors_of(const Output& y, int count) {
  return y.data == nullptr || aligned_for(y.data, y.dtype, count);
}

struct Moments {
  float mean, rstd;
};

constexpr int kNormThreads = 256;
// Up to this many columns a warp has a row to itself.
constexpr int64_t kWarpCols = 1024;

// The row of this thread's team.
template <int kTeam>
__device__ int64_t team_row() {
  return static_cast<int64_t>(blockIdx.x) * (kNormThreads / kTeam) + threadIdx.x / kTeam;
}

// Calls fn(first column) for every chunk of N columns that is this thread's.
template <int kTeam, int N, class Fn>
__device__ void for_chunks(int64_t cols, const Fn& fn) {
  for (int64_t c = static_cast<int64_t>(threadIdx.x % kTeam) * N; c < cols; c += kTeam * N) fn(c);
}

// Calls launch.template operator()<team, width>(blocks).
template <class Launch>
void launch_rows(int64_t rows, int64_t cols, bool vectors, const Launch& launch) {
  if (rows == 0 || cols == 0) return;
  if (cols <= kWarpCols) {
    const unsigned blocks = blocks_for(rows, kNormThreads / 32);
    vectors ? launch.template operator()<32, 8>(blocks) : launch.template operator()<32, 1>(blocks);
  } else {
    const auto blocks = static_cast<unsigned>(rows);
    vectors ? launch.template operator()<kNormThreads, 8>(blocks)
            : launch.template operator()<kNormThreads, 1>(blocks);
  }
  HT_CUDA_LAUNCHED();
}

// GroupNorm and its gradient (group_norm.cu).
void fill_group_norm(Kernels& table);

}  // namespace halftone::cuda
