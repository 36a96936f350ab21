#include "halftone/kernels/cuda/cudnn_attention.h"

namespace halftone::cuda {
namespace {

__global__ void sequence_lengths(SequenceLengths args) {
  const int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (b >= args.batch) return;
  const auto keys = static_cast<int32_t>(args.keys);
  args.query_lengths[b] = static_cast<int32_t>(args.queries);
  // Of an item without keys cuDNN leaves the output unwritten.
  args.key_lengths[b] = max(1, min(args.lengths[b], keys));
}

}  // namespace

void write_sequence_lengths(const SequenceLengths& args, cudaStream_t stream) {
  if (args.batch == 0) return;
  sequence_lengths<<<blocks_for(args.batch, 128), 128, 0, stream>>>(args);
  HT_CUDA_LAUNCHED();
}

}  // namespace halftone::cuda
