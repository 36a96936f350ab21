#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/flush.h"

namespace halftone::cuda {
namespace {

__global__ void read_kernel(const uint4* data, size_t count, unsigned* never) {
  unsigned all = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const uint4 words = data[i];
    all |= words.x | words.y | words.z | words.w;
  }
  if (all == 0xFFFFFFFFu && never != nullptr) *never = all;  // so that the reads stay
}

}  // namespace

void read_everything(const std::byte* data, size_t bytes, cudaStream_t stream) {
  read_kernel<<<1024, 256, 0, stream>>>(reinterpret_cast<const uint4*>(data), bytes / sizeof(uint4),
                                        nullptr);
  HT_CUDA_LAUNCHED();
}

}  // namespace halftone::cuda
