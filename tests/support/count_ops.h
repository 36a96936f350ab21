#pragma once

#include <algorithm>

#include "halftone/graph/graph.h"

namespace halftone::test {

inline int count_ops(const Graph& graph, Op op) {
  return static_cast<int>(std::count_if(graph.nodes().begin(), graph.nodes().end(),
                                        [=](const Node& node) { return node.op == op; }));
}

}  // namespace halftone::test
