// The blocks that a network repeats, as what has weights of its own: these may lie apart from the
// others, and come to a device when they are needed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"
#include "halftone/passes/merge.h"

namespace halftone {

struct WeightBlock {
  std::string name;                  // the region's
  std::vector<std::string> weights;  // those that products of this block alone read
};

// One per region of the graph as a model builds it, in order; gradients read what their region
// read. Biases and norms are few bytes, and chains of row operations may read those of two blocks
// at once: they are in none.
std::vector<WeightBlock> weight_blocks(const Graph& graph);

// Both weights in one of these blocks, or both in none. A product of several blocks' weights, such
// as the modulation of all, would need them all at once.
CanStack stack_within(std::span<const WeightBlock> blocks);

}  // namespace halftone
