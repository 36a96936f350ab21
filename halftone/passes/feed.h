// Puts graphs before another one, which takes what they compute as inputs: networks that are
// trained together.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "halftone/graph/graph.h"

namespace halftone {

struct Feeder {
  std::shared_ptr<const Graph> graph;
  std::string prefix;  // of its inputs and weights in the whole
};
using NamedValues = std::map<std::string, Value>;
// From the outputs of each feeder, inputs of the graph that is fed.
using JoinFeeders = std::function<NamedValues(std::span<const NamedValues>)>;

// Inputs that `join` gives are inputs no more. Outputs are those of `graph`.
std::shared_ptr<Graph> feed(const Graph& graph, std::span<const Feeder> feeders,
                            const JoinFeeders& join);

}  // namespace halftone
