// Products of what a concat puts side by side, made one by one: linear([a | b]) becomes linear(a) +
// linear(b), the weight being cut by columns. The parts are linears like any others then, so that
// each input has scales of its own where it is quantized.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone {

// Weights that are cut, and how many columns each part has.
using InputCuts = std::map<std::string, std::vector<int64_t>>;

// All that can be: weights of linears whose one input is a concat along its last axis.
InputCuts input_parts(const Graph& graph);

// The name of a part's weight: "a.in0.weight" of "a.weight".
std::string cut_name(const std::string& weight, size_t part);

// These columns of a matrix in the CPU's memory, as a copy.
Tensor columns_of(const Tensor& matrix, int64_t begin, int64_t end);

// Each of them must be among input_parts. What else reads a concat still does.
std::shared_ptr<Graph> cut_inputs(const Graph& graph, const InputCuts& cuts);

}  // namespace halftone
