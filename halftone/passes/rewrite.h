// Copies a graph node by node, letting a pass replace what it wants to.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone {

// The type of a weight in the copy; empty: as it is.
using WeightType = std::function<ValueType(const std::string& name, const ValueType& type)>;

// What a pass may change. Functions that are empty change nothing.
struct Rewrite {
  WeightType weight;
  // Adds to `out` what stands for this node, given its inputs there; returns its outputs there.
  std::function<std::vector<Value>(Graph& out, const Node& node, std::span<const Value> inputs)>
      node;
};

// Names of inputs, weights, constants, outputs and regions are those of the source.
std::shared_ptr<Graph> rewrite(const Graph& source, const Rewrite& how);

// The same for passes that merge or move nodes: `add_nodes` adds them all. at[id] is the source's
// value in the copy: set for inputs, weights and constants, to be set for what nodes compute as far
// as other nodes and outputs need it.
using AddNodes = std::function<void(Graph& out, std::vector<Value>& at)>;
// Weights that the copy does without.
using DropWeight = std::function<bool(const std::string& name)>;
std::shared_ptr<Graph> rebuild(const Graph& source, const AddNodes& add_nodes,
                               const WeightType& weight_type = {},
                               const DropWeight& drop_weight = {});

// The node as it is.
std::vector<Value> copy_node(Graph& out, const Graph& source, const Node& node,
                             std::span<const Value> inputs);

}  // namespace halftone
