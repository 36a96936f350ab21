// Merges chains of operations on rows (norms, modulation, gates, residuals, rotations, quantizing)
// into single nodes that read and write memory once.
#pragma once

#include <memory>

#include "halftone/graph/graph.h"

namespace halftone {

// Chains are no longer than this.
std::shared_ptr<Graph> fuse(const Graph& graph, const FusedLimits& limits = {});

}  // namespace halftone
