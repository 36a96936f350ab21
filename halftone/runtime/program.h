// A graph that is ready to run: memory planned, weights bound. Weights are shared, not owned, so
// many programs (resolutions, batches, training) use one copy.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "halftone/graph/graph.h"
#include "halftone/kernels/kernels.h"
#include "halftone/passes/plan.h"

namespace halftone {

// Weights by name. Shared by all programs of a model.
using Weights = std::map<std::string, Tensor>;

struct MemoryUse {
  int64_t weights = 0;  // bytes of the weights that the graph uses
  int64_t arena = 0;    // values while running
  int64_t peak() const { return weights + arena; }
};

class Program {
 public:
  // Weights that are missing or mis-shaped are listed by name in one Error.
  Program(std::shared_ptr<const Graph> graph, const Weights& weights, const Kernels& kernels,
          Stream stream);

  const MemoryUse& memory() const { return memory_; }

  // Runs with one tensor per input of the graph. Outputs are copies and outlive the program.
  std::map<std::string, Tensor> run(const std::map<std::string, Tensor>& inputs);

 private:
  void bind_weights(const Weights& weights);

  std::shared_ptr<const Graph> graph_;
  const Kernels& kernels_;
  Stream stream_;
  MemoryPlan plan_;
  MemoryUse memory_;
  std::map<int, Tensor> bound_;  // value -> weight or constant
  Tensor arena_;
};

}  // namespace halftone
