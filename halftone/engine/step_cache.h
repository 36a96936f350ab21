// Steps of a run resemble each other. Where a row's tokens after the network's first block have
// hardly changed, what the other blocks added at an earlier step is added again instead of being
// computed. Off unless a row brings a cache.
#pragma once

#include <string>
#include <vector>

#include "halftone/graph/graph.h"
#include "halftone/passes/cut.h"
#include "halftone/tensor/tensor.h"

namespace halftone {

// What a row keeps from step to step.
struct RowCache {
  // How much the tokens after the first block may have changed, relatively and summed up over
  // steps, since the other blocks last ran.
  float threshold = 0;
  bool whole = false;  // all blocks run at the next step, whatever it resembles

  // Whether the blocks are to run, with these sums of squares: of how far the tokens have moved
  // since the step before, and of what they were then.
  bool must_compute(double moved, double size);

  Tensor before, added;  // where the model runs: after the first block, and by the others
  double changed = 0;
  bool known = false;   // there is something to add
  bool reused = false;  // the last step did
};

// The parts of a denoiser that is run so: up to its first block, the other blocks, and the rest.
enum class CachedPart : uint8_t { kFirst, kBlocks, kRest };
Cut cut_for_cache(CachedPart part);

// To a graph whose blocks' ends are marked (nn/block_ends.h) are added
//   inputs   cache.before, cache.added: of each row, tokens like those after the first block
//   outputs  cache.moved, cache.size [rows, ..., 1]: sums of squares, as must_compute takes
//   them;
//            cache.guess: tokens after the last block, if the others add what they did;
//            cache.adds: what they add now
// A graph of one block is an Error, and one without marks.
void add_cache(Graph& graph);

inline constexpr const char* kCacheBefore = "cache.before";
inline constexpr const char* kCacheAdded = "cache.added";
inline constexpr const char* kCacheMoved = "cache.moved";
inline constexpr const char* kCacheSize = "cache.size";
inline constexpr const char* kCacheGuess = "cache.guess";
inline constexpr const char* kCacheAdds = "cache.adds";

// Steps, in order: "2, 4-6".
std::string steps_text(const std::vector<int>& steps);

// So many rows as sizes of batches that the blocks run in, each a power of two, the largest first:
// few programs serve any number.
std::vector<int64_t> batches_of(int64_t rows);

}  // namespace halftone
