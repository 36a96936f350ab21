#include "halftone/runtime/block_plan.h"

#include <algorithm>

namespace halftone {

std::vector<WeightBlock> BlockPlan::chosen(std::span<const WeightBlock> blocks) const {
  std::vector<WeightBlock> those;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (streams[i]) those.push_back(blocks[i]);
  }
  return those;
}

BlockPlan stream_blocks(std::span<const int64_t> bytes, int count) {
  BlockPlan plan;
  const auto blocks = static_cast<int64_t>(bytes.size());
  const int64_t wanted = std::clamp<int64_t>(count, 0, blocks);
  int64_t largest = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    const bool streams = (i + 1) * wanted / blocks > i * wanted / blocks;
    const int64_t size = bytes[static_cast<size_t>(i)];
    plan.streams.push_back(streams);
    (streams ? plan.streamed : plan.resident) += size;
    if (streams) largest = std::max(largest, size);
  }
  plan.count = static_cast<int>(wanted);
  plan.slots = std::min<int64_t>(kBlockSlots, wanted) * largest;
  return plan;
}

BlockPlan stream_blocks_within(std::span<const int64_t> bytes, int64_t budget) {
  const auto blocks = static_cast<int>(bytes.size());
  for (int count = 0; count < blocks; ++count) {
    BlockPlan plan = stream_blocks(bytes, count);
    if (plan.on_device() <= budget) return plan;
  }
  return stream_blocks(bytes, blocks);
}

}  // namespace halftone
