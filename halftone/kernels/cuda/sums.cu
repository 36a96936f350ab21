// Sums over dimensions. Work is cut by shape alone, and parts are added in a fixed order, so the
// same sum has the same bits on every run.
#include <algorithm>

#include "halftone/kernels/cuda/strided.cuh"
#include "halftone/kernels/workspace.h"

namespace halftone::cuda {
namespace {

// Dimensions of x that stay and that are summed, neighbours of a kind merged.
struct Axes {
  int rank = 0;
  int64_t dims[Shape::kMaxRank] = {}, strides[Shape::kMaxRank] = {};
  int64_t count = 1;

  void add_outer(int64_t dim, int64_t stride) {
    count *= dim;
    if (rank > 0 && strides[rank - 1] * dims[rank - 1] == stride) {
      dims[rank - 1] *= dim;
      return;
    }
    dims[rank] = dim;
    strides[rank++] = stride;
  }
  // Axis 0 is the innermost.
  __device__ int64_t offset(int64_t index) const {
    int64_t result = 0;
    for (int d = 0; d < rank; ++d) {
      const int64_t next = d + 1 == rank ? 0 : divide(index, dims[d]);
      result += (index - next * dims[d]) * strides[d];
      index = next;
    }
    return result;
  }
};

struct SumPlan {
  Axes kept, summed;
  bool inner_kept = false;
  int64_t slices = 1;  // of the summed index, each a partial sum
  const void* x;
  DType x_dtype;
  void* y;
  DType y_dtype;
};

constexpr int kThreads = 256;

SumPlan plan_of(const SumToArgs& args) {
  SumPlan plan;
  const Shape &x = args.x.shape, &y = args.y.shape;
  int64_t stride = 1;
  bool first = true;
  for (int i = 1; i <= x.rank(); ++i) {
    const int64_t dim = x[-i];
    // A dimension is summed where y has 1 or none of it; its place in y follows from that.
    const bool kept = i <= y.rank() && y[-i] == dim;
    if (dim != 1) {
      (kept ? plan.kept : plan.summed).add_outer(dim, stride);
      if (first) plan.inner_kept = kept;
      first = false;
    }
    stride *= dim;
  }
  const int64_t outputs = plan.kept.count, terms = plan.summed.count;
  if (outputs == 0 || terms == 0) return plan;
  const int64_t blocks = plan.inner_kept ? (outputs + kThreads - 1) / kThreads : outputs;
  const int64_t least = plan.inner_kept ? 32 : 16 * kThreads;  // terms that make a slice worth it
  const int64_t wanted = (1024 + blocks - 1) / blocks;
  plan.slices = std::clamp<int64_t>(wanted, 1, (terms + least - 1) / least);
  plan.x = args.x.data;
  plan.x_dtype = args.x.dtype;
  plan.y = args.y.data;
  plan.y_dtype = args.y.dtype;
  return plan;
}

__device__ void finish(const SumPlan& p, float* partial, int64_t output, int64_t slice, float sum) {
  if (partial == nullptr) {
    store_value(p.y, p.y_dtype, output, sum);
  } else {
    partial[slice * p.kept.count + output] = sum;
  }
}

// A thread per output: neighbours read neighbours.
__global__ void sum_columns(const __grid_constant__ SumPlan p, float* partial, int64_t tiles) {
  const int64_t slice = divide(blockIdx.x, tiles);
  const int64_t output = (blockIdx.x - slice * tiles) * kThreads + threadIdx.x;
  if (output >= p.kept.count) return;
  const int64_t per_slice = (p.summed.count + p.slices - 1) / p.slices;
  const int64_t begin = slice * per_slice, end = min(begin + per_slice, p.summed.count);
  const int64_t from = p.kept.offset(output);
  float sums[4] = {};  // four chains, so that loads need not wait for sums
  int64_t i = begin;
  for (; i + 4 <= end; i += 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      sums[k] += load_value(p.x, p.x_dtype, from + p.summed.offset(i + k));
  }
  for (; i < end; ++i) sums[0] += load_value(p.x, p.x_dtype, from + p.summed.offset(i));
  finish(p, partial, output, slice, (sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// A block per output and slice: its threads read neighbours.
__global__ void sum_rows(const __grid_constant__ SumPlan p, float* partial) {
  const int64_t output = divide(blockIdx.x, p.slices);
  const int64_t slice = blockIdx.x - output * p.slices;
  const int64_t per_slice = (p.summed.count + p.slices - 1) / p.slices;
  const int64_t begin = slice * per_slice, end = min(begin + per_slice, p.summed.count);
  const int64_t from = p.kept.offset(output);
  float sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    sum += load_value(p.x, p.x_dtype, from + p.summed.offset(i));
  sum = team_sum<kThreads>(sum);
  if (threadIdx.x == 0) finish(p, partial, output, slice, sum);
}

// A warp per output.
__global__ void sum_partial(const __grid_constant__ SumPlan p, const float* partial) {
  const int64_t output = thread_index() / 32;
  if (output >= p.kept.count) return;
  float sum = 0;
  for (int64_t s = threadIdx.x % 32; s < p.slices; s += 32)
    sum += partial[s * p.kept.count + output];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) store_value(p.y, p.y_dtype, output, sum);
}

void sum_to(const SumToArgs& args, Stream stream) {
  const SumPlan plan = plan_of(args);
  const int64_t outputs = args.y.shape.numel();
  if (outputs == 0) return;
  const auto on = context_of(stream).stream();
  if (plan.summed.count == 0) {  // a sum of nothing; all bits zero is 0 in every dtype
    HT_CUDA(
        cudaMemsetAsync(args.y.data, 0, static_cast<size_t>(outputs * size_of(args.y.dtype)), on));
    return;
  }
  Workspace workspace(stream);
  float* partial = plan.slices > 1 ? workspace.floats(plan.slices * outputs) : nullptr;
  if (plan.inner_kept) {
    const int64_t tiles = (outputs + kThreads - 1) / kThreads;
    sum_columns<<<static_cast<unsigned>(tiles * plan.slices), kThreads, 0, on>>>(plan, partial,
                                                                                 tiles);
  } else {
    sum_rows<<<static_cast<unsigned>(outputs * plan.slices), kThreads, 0, on>>>(plan, partial);
  }
  HT_CUDA_LAUNCHED();
  if (partial == nullptr) return;
  sum_partial<<<blocks_for(outputs * 32, kThreads), kThreads, 0, on>>>(plan, partial);
  HT_CUDA_LAUNCHED();
}

int64_t sum_to_workspace(const SumToArgs& args, const Stream&) {
  const SumPlan plan = plan_of(args);
  return plan.slices > 1 ? float_workspace({plan.slices * plan.kept.count}) : 0;
}

}  // namespace

void fill_sums(Kernels& table) {
  table.sum_to = {
      [](const SumToArgs& a) { return loads_as_float(a.x.dtype) && stores_from_float(a.y.dtype); },
      sum_to, sum_to_workspace};
}

}  // namespace halftone::cuda
