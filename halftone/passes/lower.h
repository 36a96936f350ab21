// From what a linear says about its input's format to nodes that do it.
#pragma once

#include <memory>

#include "halftone/graph/graph.h"

namespace halftone {

// Every linear that quantizes its input gets a quantize node before it; linears on the same input
// in the same format share one.
std::shared_ptr<Graph> lower(const Graph& graph);

}  // namespace halftone
