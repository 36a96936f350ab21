// Sums that a product makes on its way: c + a b^T in one operation, in place where c ends there.
#pragma once

#include <memory>

#include "halftone/graph/graph.h"

namespace halftone {

// An addition of which one side is a product that nobody else reads becomes that product with an
// operand to add: of two products, the larger one, since it hides the reading best.
std::shared_ptr<Graph> fold_addends(const Graph& graph);

}  // namespace halftone
