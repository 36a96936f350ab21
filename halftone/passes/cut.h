// Cuts a graph into parts that are compiled and run one after the other, each being given what
// earlier ones computed: whoever runs them may leave one out, or run it for some rows only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone {

struct Cut {
  // Outputs that each part ends with, and before which nothing else is computed; what none of them
  // needs is in one part more, the last.
  std::vector<std::vector<std::string>> ends;
  size_t part = 0;  // the one that is wanted
};

// That part. What it takes from earlier ones is an input, and there an output, under one name: that
// of the output, if it is one of the whole graph. Graphs that differ only in their inputs' sizes,
// and in nodes behind those that cross, have the same names. What follows from weights alone is
// computed in every part that reads it. Outputs are values that the graph computes, each by one
// name.
std::shared_ptr<Graph> cut(const Graph& graph, const Cut& how);

}  // namespace halftone
