#include "halftone/kernels/adamw.h"
#include "halftone/kernels/cuda/strided.cuh"

namespace halftone::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads == kMomentBlock);  // of 8-bit moments, one thread block has a block

// One value, and its running mean where there is one.
__device__ void step(const AdamWFactors& factors, int64_t i, float gradient,
                     const ParameterValues& values, float& first, float& second, float* average) {
  float p = values.get(i);
  adamw_step(factors, gradient, p, first, second);
  p = values.set(i, p);
  if (average != nullptr) average[i] += factors.average_rate * (p - average[i]);
}

__global__ void adamw_kernel(AdamWFactors factors, const float* g, int64_t count,
                             ParameterValues values, float* first, float* second, float* average) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < count) step(factors, i, g[i], values, first[i], second[i], average);
}

// The largest of all threads' values, in all threads.
__device__ float block_largest(float value, float* shared) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
  }
  __syncthreads();  // of the use before
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  for (int warp = 0; warp < kThreads / 32; ++warp) value = fmaxf(value, shared[warp]);
  return value;
}

__global__ void adamw_8bit_kernel(AdamWFactors factors, const float* g, int64_t count,
                                  ParameterValues values, uint8_t* first_codes,
                                  uint8_t* second_codes, float* first_scales, float* second_scales,
                                  float* average) {
  __shared__ float shared[kThreads / 32];
  const int64_t block = blockIdx.x, i = block * kThreads + threadIdx.x;
  const bool mine = i < count;
  float first = 0, second = 0;
  if (mine) {
    first = decode<E4M3>(first_codes[i]) * first_scales[block];
    const float root = decode<E4M3>(second_codes[i]) * second_scales[block];
    second = root * root;
    step(factors, i, g[i], values, first, second, average);
  }
  const float root = sqrtf(second);
  const float first_scale = moment_scale(block_largest(fabsf(first), shared));
  const float second_scale = moment_scale(block_largest(root, shared));
  if (mine) {
    first_codes[i] = encode_moment(first, first_scale);
    second_codes[i] = encode_root(root, second_scale);
  }
  if (threadIdx.x == 0) {  // everyone has read them: block_largest waits for all
    first_scales[block] = first_scale;
    second_scales[block] = second_scale;
  }
}

float* floats(const View& view) { return static_cast<float*>(view.data); }
uint8_t* codes(const View& view) { return static_cast<uint8_t*>(view.data); }

void adamw(const AdamWArgs& args, Stream stream) {
  const int64_t count = args.parameters.shape.numel();
  if (count == 0) return;
  const auto* gradients = static_cast<const float*>(args.gradients.data);
  const AdamWFactors factors = adamw_factors(args);
  const cudaStream_t on = context_of(stream).stream();
  const auto blocks = blocks_for(count, kThreads);
  if (args.first.dtype == DType::kF32) {
    adamw_kernel<<<blocks, kThreads, 0, on>>>(factors, gradients, count, parameter_values(args),
                                              floats(args.first), floats(args.second),
                                              floats(args.average));
  } else {
    adamw_8bit_kernel<<<blocks, kThreads, 0, on>>>(
        factors, gradients, count, parameter_values(args), codes(args.first), codes(args.second),
        floats(args.first_scales), floats(args.second_scales), floats(args.average));
  }
  HT_CUDA_LAUNCHED();
}

bool is_taken(const AdamWArgs& a) {
  const bool moments = a.first.dtype == a.second.dtype &&
                       (a.first.dtype == DType::kF32 || a.first.dtype == DType::kF8E4M3);
  const bool values = a.parameters.dtype == DType::kF32 || a.parameters.dtype == DType::kBF16;
  return a.gradients.dtype == DType::kF32 && values && moments;
}

}  // namespace

void fill_adamw(Kernels& table) { table.adamw = {is_taken, adamw, nullptr}; }

}  // namespace halftone::cuda
