// A graph that is ready to run: memory planned, weights bound. Weights are shared, not owned, so
// many programs (resolutions, batches, training) use one copy.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "halftone/graph/graph.h"
#include "halftone/kernels/kernels.h"
#include "halftone/passes/plan.h"
#include "halftone/tensor/quantized_tensor.h"

namespace halftone {

// A weight as it is stored, in high precision or quantized along its rows.
using Weight = std::variant<Tensor, QuantizedTensor>;
const Shape& shape_of(const Weight& weight);
int64_t byte_size_of(const Weight& weight);
// Weights by name. Shared by all programs of a model.
using Weights = std::map<std::string, Weight>;

struct MemoryUse {
  int64_t weights = 0;    // bytes of the weights that the graph uses
  int64_t arena = 0;      // values while running
  int64_t workspace = 0;  // scratch memory of kernels
  int64_t borders = 0;    // tensors that are given to a run and come back from it
  int64_t working() const { return arena + workspace + borders; }
  int64_t peak() const { return weights + working(); }
};

// Memory that programs use while they run. Programs that do not run at the same time share one.
class Arena {
 public:
  // At least this much, kept from then on; what was there before is lost.
  std::byte* reserve(int64_t bytes);
  // The first reservation will be of this much: growing step by step would leave holes.
  void expect(int64_t bytes) { expected_ = std::max(expected_, bytes); }

 private:
  int64_t expected_ = 0;
  Tensor memory_;
};

class Program {
 public:
  // Weights that are missing, mis-shaped or in another format than the graph's are listed by name
  // in one Error. Memory is known from here on, and allocated by the first run.
  Program(std::shared_ptr<const Graph> graph, const Weights& weights, const Kernels& kernels,
          Stream stream, std::shared_ptr<Arena> arena = std::make_shared<Arena>());

  const MemoryUse& memory() const { return memory_; }
  const Graph& graph() const { return *graph_; }

  // Runs with one tensor per input of the graph. Outputs are copies and outlive the program.
  std::map<std::string, Tensor> run(const std::map<std::string, Tensor>& inputs);

  // Told how long each node took, from now on.
  using NodeTimer = std::function<void(const Node& node, double seconds)>;
  void set_timer(NodeTimer timer) { timer_ = std::move(timer); }

 private:
  void bind_weights(const Weights& weights);
  void bind_inputs(const std::map<std::string, Tensor>& inputs);
  ConstView const_view(int id) const;
  View view(int id) const;

  std::shared_ptr<const Graph> graph_;
  const Kernels& kernels_;
  Stream stream_;
  MemoryPlan plan_;
  MemoryUse memory_;
  std::map<int, Weight> bound_;  // value -> weight, constant or, during a run, input
  NodeTimer timer_;
  std::shared_ptr<Arena> arena_;
  std::byte* memory_start_ = nullptr;  // of the arena, during a run
};

}  // namespace halftone
