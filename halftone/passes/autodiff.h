// Reverse-mode differentiation as a pass: appends to the graph the nodes that compute gradients.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone {

// Gradients of `loss` (one element) with respect to each of `wrt`, in that order and with their
// types. A value that loss does not depend on gets zeros. Gradients that nobody asked for are not
// computed.
std::vector<Value> differentiate(Value loss, std::span<const Value> wrt);

}  // namespace halftone
