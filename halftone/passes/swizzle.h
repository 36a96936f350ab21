// Has quantizers write block scales in the order that block-scaled products read, for devices that
// multiply such operands themselves.
#pragma once

#include <memory>

#include "halftone/graph/graph.h"

namespace halftone {

// Changes what is quantized by blocks and read by nothing but linears that take it so. On a lowered
// graph.
std::shared_ptr<Graph> swizzle_block_scales(const Graph& graph);

}  // namespace halftone
