// Weights that stay in the CPU's memory while a program runs on a device. They lie there block by
// block (HostBlock); each block is copied into a slot of the device's memory before the first node
// that reads it, beside the nodes that run before that.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "halftone/kernels/op_args.h"
#include "halftone/passes/plan.h"
#include "halftone/runtime/weights.h"

namespace halftone {

// One time that a block is in a slot.
struct BlockLoad {
  int block = 0, slot = 0;
  int first = 0, last = 0;  // nodes that read it there
  int after = -1;           // the last node that reads what was in the slot before; -1: nothing was
  bool operator==(const BlockLoad&) const = default;
};

// reads[i]: the blocks that node i reads, not more than there are slots. Blocks may come back, in
// any order, as they do backwards; one that still lies in a slot is not copied again. In the order
// of `first`.
std::vector<BlockLoad> plan_block_loads(std::span<const std::vector<int>> reads, int slots);

class BlockStream {
 public:
  // Of a graph whose weights are bound. At least one of them is in a HostBlock.
  BlockStream(const Graph& graph, const MemoryPlan& plan, const std::map<int, Weight>& bound,
              DeviceContext& device);
  ~BlockStream();  // when no copy is under way any longer
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;

  int64_t bytes() const { return slots_ * slot_bytes_; }  // of all slots
  int slots() const { return slots_; }
  const std::vector<BlockLoad>& loads() const { return loads_; }

  // Of the weight of this value, if it is in a block: to where it lies at this node of a run.
  void move_to_slot(int value, ConstView& view) const;

  // The launches of one run, or of a recording, node by node.
  class Run {
   public:
    Run(BlockStream& stream, std::byte* slots);
    ~Run();  // also where not all nodes were launched
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
    void begin();  // the copies that wait for no node
    void before(int node);
    void after(int node);

   private:
    static constexpr int kNone = -1;
    void begin_copies(int after);
    BlockStream& stream_;
    std::byte* slots_;
    size_t next_ = 0;          // of the loads, the first that was not awaited
    std::vector<int> copies_;  // by load: its number while it is under way
  };

 private:
  DeviceContext& device_;
  std::vector<const HostBlock*> blocks_;
  std::map<int, int> block_of_;  // by value
  int slots_ = 0;
  int64_t slot_bytes_ = 0;
  std::vector<BlockLoad> loads_;
  std::map<int, std::vector<size_t>> begin_after_;  // loads, by `after`
  std::vector<const std::byte*> lies_at_;           // by block, at this node of a run
};

}  // namespace halftone
