#include "halftone/kernels/cuda/attention_products.h"
#include "halftone/kernels/cuda/elements.cuh"

namespace halftone::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <class Op>
__device__ float reduce(float x, float start, const Op& op, float* memory) {
  for (int step = 16; step > 0; step /= 2) x = op(x, __shfl_xor_sync(~0u, x, step));
  __syncthreads();  // those before may still be reading
  if (threadIdx.x % 32 == 0) memory[threadIdx.x / 32] = x;
  __syncthreads();
  x = start;
  for (int i = 0; i < kWarps; ++i) x = op(x, memory[i]);
  return x;
}

// A block per row.
__global__ void softmax_kernel(const SoftmaxArgs a) {
  __shared__ float memory[kWarps];
  const int64_t row = blockIdx.x;
  int64_t seen = a.length != nullptr && *a.length < a.keys ? *a.length : a.keys;
  if (a.causal) seen = min(seen, a.first_query + row + 1 + a.keys - a.queries);
  const float* scores = a.scores + row * a.keys;
  float largest = -INFINITY;
  for (int64_t i = threadIdx.x; i < seen; i += kThreads) largest = fmaxf(largest, scores[i]);
  largest = reduce(largest, -INFINITY, [](float x, float y) { return fmaxf(x, y); }, memory);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < seen; i += kThreads) {
    sum += expf((scores[i] - largest) * a.scale);
  }
  sum = reduce(sum, 0.0f, [](float x, float y) { return x + y; }, memory);
  for (int64_t i = threadIdx.x; i < a.keys; i += kThreads) {
    const float p = i < seen ? expf((scores[i] - largest) * a.scale) / sum : 0.0f;
    store_value(a.p, a.dtype, row * a.keys + i, p);
  }
}

__global__ void softmax_grad_kernel(const SoftmaxGradArgs a) {
  __shared__ float memory[kWarps];
  const int64_t first = blockIdx.x * a.keys;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < a.keys; i += kThreads) {
    sum += load_value(a.p, a.dtype, first + i) * a.dp[first + i];
  }
  sum = reduce(sum, 0.0f, [](float x, float y) { return x + y; }, memory);
  for (int64_t i = threadIdx.x; i < a.keys; i += kThreads) {
    const float p = load_value(a.p, a.dtype, first + i);
    store_value(a.ds, a.dtype, first + i, p * (a.dp[first + i] - sum) * a.scale);
  }
}

}  // namespace

void softmax_grad(const SoftmaxGradArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.keys == 0) return;
  softmax_grad_kernel<<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
  HT_CUDA_LAUNCHED();
}

void softmax(const SoftmaxArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.keys == 0) return;
  softmax_kernel<<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
  HT_CUDA_LAUNCHED();
}

}  // namespace halftone::cuda
