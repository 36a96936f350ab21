#include "halftone/kernels/cuda/backend.h"
#include "tests/support/backend.h"

namespace halftone::test {

const Kernels& tested_kernels() { return cuda_kernels(); }

namespace {
std::unique_ptr<DeviceContext>& device() {
  static std::unique_ptr<DeviceContext> context = make_cuda_context(0);
  return context;
}
}  // namespace

Stream tested_stream() { return {2, device().get()}; }

void end_tested_device() { device() = nullptr; }

Program tested_program(const std::shared_ptr<Graph>& graph, const Weights& weights) {
  const Stream stream = tested_stream();
  return Program(graph, to_device(weights, weight_stacks(*graph), *stream.device), tested_kernels(),
                 stream);
}

std::shared_ptr<Graph> tested_compile(const Graph& graph, const CompileOptions& how) {
  return compile(graph, how, tested_kernels(), tested_stream()).graph;
}
// Sums over a row are formed in another order. In BF16 that turns a few roundings.
double compile_tolerance(DType activations) { return activations == DType::kF32 ? 1e-5 : 3e-2; }
bool rounds_weights() { return true; }
// Hopper's tensor cores keep sums of FP8 products in fewer bits (fast accumulation).
double product_tolerance(DType) { return 2.5e-3; }

}  // namespace halftone::test
