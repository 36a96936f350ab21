// Values of the forward pass that gradients need, computed again where gradients read them instead
// of kept until then.
#pragma once

#include <memory>

#include "halftone/graph/graph.h"

namespace halftone {

enum class Recompute : uint8_t {
  kNone,
  kRows,    // norms, modulation, gates and the like, where what they are made of is kept anyway:
            // a little time for about half of the memory
  kBlocks,  // everything but what enters a block: a forward pass more, for the least memory
};

// Only within regions: what one block hands to the next is kept. Nodes that lead to nothing go,
// too.
std::shared_ptr<Graph> recompute(const Graph& graph, Recompute how);

}  // namespace halftone
