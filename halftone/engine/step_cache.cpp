#include "halftone/engine/step_cache.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/graph/ops.h"
#include "halftone/nn/block_ends.h"

namespace halftone {

bool RowCache::must_compute(double moved, double size) {
  changed += std::sqrt(moved / size);  // what is no number is below no threshold
  reused = known && !whole && changed < threshold;
  if (!reused) changed = 0;
  known = true;
  whole = false;
  return !reused;
}

Cut cut_for_cache(CachedPart part) {
  return {{{nn::kAfterFirstBlock, kCacheMoved, kCacheSize, kCacheGuess},
           {nn::kAfterLastBlock, kCacheAdds}},
          static_cast<size_t>(part)};
}

void add_cache(Graph& graph) {
  if (!graph.outputs().contains(nn::kAfterFirstBlock)) {
    throw Error(ErrorCode::kUnsupported, "cache",
                "the model has no blocks one after the other that steps could do without");
  }
  const Value first = graph.outputs().at(nn::kAfterFirstBlock);
  const Value last = graph.outputs().at(nn::kAfterLastBlock);
  if (first == last) {
    throw Error(ErrorCode::kUnsupported, "cache", "the model has one block, and none to leave out");
  }
  HT_ASSERT(first.type() == last.type());
  const auto wide = [](Value x) { return cast(x, DType::kF32); };
  const Value before = wide(graph.input(kCacheBefore, first.type()));
  const Value added = wide(graph.input(kCacheAdded, first.type()));
  const Value now = wide(first);
  // Each token's sum by itself: no row's depends on how many rows there are.
  std::vector<int64_t> dims(first.shape().dims().begin(), first.shape().dims().end());
  dims.back() = 1;
  const Shape by_token(dims);
  const Value moved = now - before;
  graph.output(kCacheMoved, sum_to(moved * moved, by_token));
  graph.output(kCacheSize, sum_to(before * before, by_token));
  graph.output(kCacheGuess, cast(now + added, first.dtype()));
  graph.output(kCacheAdds, cast(wide(last) - now, first.dtype()));
}

std::string steps_text(const std::vector<int>& steps) {
  std::string text;
  for (size_t i = 0; i < steps.size();) {
    size_t end = i + 1;
    while (end < steps.size() && steps[end] == steps[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", steps[i]);
    if (end - i > 1) text += fmt::format("-{}", steps[end - 1]);
    i = end;
  }
  return text;
}

std::vector<int64_t> batches_of(int64_t rows) {
  std::vector<int64_t> sizes;
  while (rows > 0) {
    sizes.push_back(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows))));
    rows -= sizes.back();
  }
  return sizes;
}

}  // namespace halftone
