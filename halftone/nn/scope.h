// Names of weights while a model is built: scope["layers.0"]["attention"].weight("to_q.weight",
// ...).
#pragma once

#include <string>
#include <string_view>

#include "halftone/graph/graph.h"

namespace halftone::nn {

class Scope {
 public:
  Scope(Graph& graph, std::string prefix) : graph_(&graph), prefix_(std::move(prefix)) {}

  Scope operator[](std::string_view name) const {
    return {*graph_, prefix_ + std::string(name) + "."};
  }
  Value weight(std::string_view name, const Shape& shape) const {
    return graph_->weight(prefix_ + std::string(name), {shape, DType::kF32, {}});
  }
  Graph& graph() const { return *graph_; }
  // "layers.0" for a scope of that name.
  std::string name() const { return prefix_.empty() ? "" : prefix_.substr(0, prefix_.size() - 1); }

 private:
  Graph* graph_;
  std::string prefix_;
};

}  // namespace halftone::nn
