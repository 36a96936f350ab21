// Places every computed value in one arena, by liveness: peak memory is known before a run.
#pragma once

#include <cstdint>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone {

struct MemoryPlan {
  static constexpr int64_t kOutside = -1;  // inputs, weights and constants

  std::vector<int64_t> offset;  // per value, in the arena; a reshape has that of its source
  std::vector<int> storage;     // per value, the one whose bytes it shares (itself, mostly)
  int64_t arena_bytes = 0;
  std::vector<bool> used;  // per node: whether an output of the graph depends on it
};

MemoryPlan plan_memory(const Graph& graph);

}  // namespace halftone
