// Linears on the same input become one: one quantized input, one product, whose columns are then
// taken apart. Their weights are stacked into one (Graph::stacked_weight).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone {

// Whether two weights are stored in a way that lets them be stacked; empty: always.
using CanStack = std::function<bool(const std::string& a, const std::string& b)>;

// Merged are linears of one region with weights of one shape and format, and those on a single row
// per item (modulation) of all regions. Formats with a scale for a whole tensor are left alone:
// stacked, there would be several.
std::shared_ptr<Graph> merge_linears(const Graph& graph, const CanStack& can_stack = {});

// Names of weights that are stacked, in order.
using WeightStack = std::vector<std::string>;
// Those of the graph's weights that stand for several.
std::vector<WeightStack> weight_stacks(const Graph& graph);

}  // namespace halftone
