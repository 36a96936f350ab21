#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "tests/cuda/device_codecs_kernels.h"

namespace halftone::test {
namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

__global__ void compute_kernel(const float* x, Results* results, uint64_t count) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) results[i] = compute(x[i], i);
}

}  // namespace

bool gpu_present() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return false;
  cudaFuncAttributes attributes{};  // fails where nothing was compiled for this GPU
  return cudaFuncGetAttributes(&attributes, compute_kernel) == cudaSuccess;
}

std::vector<Results> compute_on_device(const std::vector<float>& x) {
  float* device_x = nullptr;
  Results* device_results = nullptr;
  std::vector<Results> results(x.size());
  check(cudaMalloc(&device_x, x.size() * sizeof(float)), "cudaMalloc");
  check(cudaMalloc(&device_results, x.size() * sizeof(Results)), "cudaMalloc");
  check(cudaMemcpy(device_x, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice),
        "copy in");
  // Poisoned, so that a value that is never written cannot pass.
  check(cudaMemset(device_results, 0xA5, x.size() * sizeof(Results)), "cudaMemset");
  const auto blocks = static_cast<unsigned>((x.size() + 255) / 256);
  compute_kernel<<<blocks, 256>>>(device_x, device_results, x.size());
  check(cudaGetLastError(), "launch");
  check(cudaMemcpy(results.data(), device_results, x.size() * sizeof(Results),
                   cudaMemcpyDeviceToHost),
        "copy out");
  check(cudaFree(device_x), "cudaFree");
  check(cudaFree(device_results), "cudaFree");
  return results;
}

}  // namespace halftone::test
