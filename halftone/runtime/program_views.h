// Weights and values of a graph as kernels see them.
#pragma once

#include <string>

#include "halftone/graph/graph.h"
#include "halftone/kernels/op_args.h"
#include "halftone/runtime/weights.h"

namespace halftone {

// What tells a weight from what the graph expects; empty if nothing does.
std::string mismatch(const Weight& weight, const ValueType& type);
bool is_on_host(const Weight& weight);

ConstView view_of(const Weight& weight);
// Of a value whose bytes start at data.
View view_at(const ValueType& type, std::byte* data);
ConstView constant(const View& view);

}  // namespace halftone
