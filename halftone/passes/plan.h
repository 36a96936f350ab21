// Places every computed value in one arena, by liveness: peak memory is known before a run.
#pragma once

#include <cstdint>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone {

struct MemoryPlan {
  static constexpr int64_t kOutside = -1;  // inputs, weights and constants; gradients of frozen
                                           // weights, which nobody reads and nobody computes

  std::vector<int64_t> offset;        // per value, in the arena
  std::vector<int> storage;           // per value, the one whose bytes it shares (itself, mostly)
  std::vector<int64_t> token_stride;  // per value, as ConstView has it; 0 where it is packed
  int64_t arena_bytes = 0;
  std::vector<bool> runs;  // per node: an output of the graph depends on it, and it computes
};

// Pieces that a concat puts one after the other are computed where they are to lie, and parts of
// that kind are left where they are. A product adds to its last operand in place where nothing
// reads that later. With strided attention, so are columns of a value that only
// attention reads.
MemoryPlan plan_memory(const Graph& graph, bool strided_attention = false);

}  // namespace halftone
