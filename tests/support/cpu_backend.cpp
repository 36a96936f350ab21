#include "tests/support/backend.h"
#include "tests/support/fake_device.h"

namespace halftone::test {

const Kernels& tested_kernels() { return cpu_kernels(); }
Stream tested_stream() { return {2}; }

Program tested_program(const std::shared_ptr<Graph>& graph, const Weights& weights) {
  // Stacks lie together, as on a device.
  FakeDevice memory;
  const auto stacks = weight_stacks(*graph);
  return Program(graph, stacks.empty() ? weights : to_device(weights, stacks, memory),
                 tested_kernels(), tested_stream());
}

std::shared_ptr<Graph> tested_compile(const Graph& graph, const CompileOptions& how) {
  return compile(graph, how, tested_kernels(), tested_stream()).graph;
}
double compile_tolerance(DType) { return 0; }
bool rounds_weights() { return false; }
double product_tolerance(DType result) { return result == DType::kF32 ? 2e-6 : 1e-3; }

}  // namespace halftone::test
