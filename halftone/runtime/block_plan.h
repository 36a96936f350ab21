// Which blocks of a network stay in the CPU's memory and are streamed to a device, where not all of
// them are to be there.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "halftone/passes/blocks.h"

namespace halftone {

// Of device memory, for streamed blocks: one is read while the next is filled.
inline constexpr int kBlockSlots = 2;
inline constexpr int kAllBlocks = std::numeric_limits<int>::max();

struct BlockPlan {
  std::vector<bool> streams;  // by block
  int count = 0;              // of those that do
  int64_t streamed = 0;       // their bytes, in the CPU's memory
  int64_t resident = 0;       // bytes of the others, on the device
  int64_t slots = 0;          // of the device, that streamed ones are copied into
  int64_t on_device() const { return resident + slots; }
  std::vector<WeightBlock> chosen(std::span<const WeightBlock> blocks) const;  // those that do
};

// So many of the blocks with these bytes, or all: spread evenly behind the first, so that a copy
// has the time of blocks that are there already. Few blocks save nothing: slots are as large as the
// largest two of them.
BlockPlan stream_blocks(std::span<const int64_t> bytes, int count);

// The fewest that leave no more than `budget` on the device; all of them where that is impossible,
// which on_device() shows.
BlockPlan stream_blocks_within(std::span<const int64_t> bytes, int64_t budget);

}  // namespace halftone
