#include "halftone/kernels/cuda/backend.h"
#include "halftone/passes/fuse.h"
#include "halftone/passes/merge.h"
#include "tests/support/backend.h"

namespace halftone::test {

const Kernels& tested_kernels() { return cuda_kernels(); }

Stream tested_stream() {
  static const std::unique_ptr<DeviceContext> kDevice = make_cuda_context(0);
  return {2, kDevice.get()};
}

Program tested_program(const std::shared_ptr<Graph>& graph, const Weights& weights) {
  const Stream stream = tested_stream();
  return Program(graph, to_device(weights, merged_weights(*graph), *stream.device),
                 tested_kernels(), stream);
}

std::shared_ptr<Graph> tested_compile(const Graph& graph) { return fuse(*merge_linears(graph)); }
// Sums over a row are formed in another order. In BF16 that turns a few roundings.
double compile_tolerance(DType activations) { return activations == DType::kF32 ? 1e-5 : 3e-2; }
bool rounds_weights() { return true; }
// Hopper's tensor cores keep sums of FP8 products in fewer bits (fast accumulation).
double product_tolerance(DType) { return 2.5e-3; }

}  // namespace halftone::test
