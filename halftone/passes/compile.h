// From a graph as a model builds it to one that is ready to be planned and run: the one place that
// knows which passes there are, and their order.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "halftone/kernels/kernels.h"
#include "halftone/passes/cut.h"
#include "halftone/passes/lora.h"
#include "halftone/passes/merge.h"
#include "halftone/passes/quantize.h"
#include "halftone/passes/recompute.h"

namespace halftone {

// What a graph is to become.
struct CompileOptions {
  std::vector<LoraSites> lora;           // adapters to put beside linears
  std::optional<QuantizeRecipe> recipe;  // linears to run in low precision
  // What is added behind the linears once these have their formats: a loss and its gradients.
  std::function<void(Graph&)> extend;
  std::optional<Cut> cut;                  // a part of all that
  Recompute recompute = Recompute::kRows;  // of what gradients need, where it is optimized
  bool optimize = true;                    // otherwise node by node, as the model was written
  CanStack can_stack;                      // empty: all weights of one type
};

struct CompiledGraph {
  std::shared_ptr<Graph> graph;
  QuantizeReport report;  // of the recipe
};

// For this backend on this stream's device.
CompiledGraph compile(const Graph& graph, const CompileOptions& options, const Kernels& kernels,
                      const Stream& stream);

}  // namespace halftone
