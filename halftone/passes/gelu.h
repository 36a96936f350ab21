// Lets products apply the GELU that follows them, where no quantizer would take it along anyway.
#pragma once

#include <memory>

#include "halftone/graph/graph.h"

namespace halftone {

// The result then is GELU of what the product would have rounded first. On a lowered graph, for
// backends whose products do this at no cost.
std::shared_ptr<Graph> fold_gelu(const Graph& graph);

}  // namespace halftone
