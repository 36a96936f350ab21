#include "halftone/runtime/block_stream.h"

#include <algorithm>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/runtime/block_plan.h"

namespace halftone {
namespace {

constexpr int64_t kSlotAlignment = 256;

bool contains(const std::vector<int>& among, int one) {
  return std::find(among.begin(), among.end(), one) != among.end();
}

}  // namespace

std::vector<BlockLoad> plan_block_loads(std::span<const std::vector<int>> reads, int slots) {
  std::vector<BlockLoad> loads;
  std::vector<int> lying(static_cast<size_t>(slots), -1);  // by slot: the load
  for (size_t i = 0; i < reads.size(); ++i) {
    const auto node = static_cast<int>(i);
    for (const int block : reads[i]) {
      const auto has_it = [&](int load) { return load >= 0 && loads[load].block == block; };
      const auto there = std::find_if(lying.begin(), lying.end(), has_it);
      if (there != lying.end()) {
        loads[*there].last = node;
        continue;
      }
      // The slot that has not been read for longest is free soonest.
      int oldest = -1;
      const auto last_read = [&](int slot) {
        return lying[slot] < 0 ? -1 : loads[lying[slot]].last;
      };
      for (int slot = 0; slot < slots; ++slot) {
        if (lying[slot] >= 0 && contains(reads[i], loads[lying[slot]].block)) continue;
        if (oldest < 0 || last_read(slot) < last_read(oldest)) oldest = slot;
      }
      HT_ASSERT(oldest >= 0);
      loads.push_back({block, oldest, node, node, last_read(oldest)});
      lying[oldest] = static_cast<int>(loads.size()) - 1;
    }
  }
  return loads;
}

BlockStream::BlockStream(const Graph& graph, const MemoryPlan& plan,
                         const std::map<int, Weight>& bound, DeviceContext& device)
    : device_(device) {
  std::map<const HostBlock*, int> index;
  for (const auto& [id, weight] : bound) {
    const HostBlock* block = host_block_of(weight);
    if (block == nullptr) continue;
    const auto [at, is_new] = index.emplace(block, static_cast<int>(blocks_.size()));
    if (is_new) blocks_.push_back(block);
    block_of_[id] = at->second;
  }
  std::vector<std::vector<int>> reads(graph.nodes().size());
  size_t most = 0;
  for (size_t i = 0; i < reads.size(); ++i) {
    if (!plan.runs[i]) continue;
    for (const int id : graph.nodes()[i].inputs) {
      const auto found = block_of_.find(plan.storage[id]);
      if (found != block_of_.end() && !contains(reads[i], found->second)) {
        reads[i].push_back(found->second);
      }
    }
    most = std::max(most, reads[i].size());
  }
  slots_ =
      std::max(std::min(kBlockSlots, static_cast<int>(blocks_.size())), static_cast<int>(most));
  loads_ = plan_block_loads(reads, slots_);
  for (size_t i = 0; i < loads_.size(); ++i) begin_after_[loads_[i].after].push_back(i);
  for (const BlockLoad& load : loads_) {
    slot_bytes_ = std::max(slot_bytes_, static_cast<int64_t>(blocks_[load.block]->size()));
  }
  slot_bytes_ = (slot_bytes_ + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  lies_at_.resize(blocks_.size());
}

// Whoever has this holds the weights that are copied, and may be the last to.
BlockStream::~BlockStream() {
  try {
    device_.synchronize();
  } catch (const Error&) {  // told to whoever launched
  }
}

void BlockStream::move_to_slot(int value, ConstView& view) const {
  const auto found = block_of_.find(value);
  if (found == block_of_.end()) return;
  const std::byte* to = lies_at_[found->second];
  HT_ASSERT(to != nullptr);
  const std::ptrdiff_t shift = to - blocks_[found->second]->address();
  const auto moved = [&](const void* at) { return static_cast<const std::byte*>(at) + shift; };
  view.data = moved(view.data);
  if (view.scales != nullptr) view.scales = moved(view.scales);
  if (view.global_scale != nullptr) {
    view.global_scale = reinterpret_cast<const float*>(moved(view.global_scale));
  }
}

BlockStream::Run::Run(BlockStream& stream, std::byte* slots)
    : stream_(stream), slots_(slots), copies_(stream.loads_.size(), kNone) {}

// Whatever runs next in the same memory has to wait for copies into it.
BlockStream::Run::~Run() {
  std::fill(stream_.lies_at_.begin(), stream_.lies_at_.end(), nullptr);
  for (const int copy : copies_) {
    if (copy == kNone) continue;
    try {
      stream_.device_.await(copy);
    } catch (const Error&) {  // told to whoever launched
    }
  }
}

void BlockStream::Run::begin_copies(int after) {
  const auto found = stream_.begin_after_.find(after);
  if (found == stream_.begin_after_.end()) return;
  for (const size_t i : found->second) {
    const BlockLoad& load = stream_.loads_[i];
    copies_[i] = stream_.device_.prefetch(slots_ + load.slot * stream_.slot_bytes_,
                                          stream_.blocks_[load.block]->bytes());
  }
}

void BlockStream::Run::before(int node) {
  for (; next_ < copies_.size() && stream_.loads_[next_].first == node; ++next_) {
    const BlockLoad& load = stream_.loads_[next_];
    stream_.device_.await(std::exchange(copies_[next_], kNone));
    stream_.lies_at_[load.block] = slots_ + load.slot * stream_.slot_bytes_;
  }
}

void BlockStream::Run::begin() { begin_copies(-1); }

void BlockStream::Run::after(int node) { begin_copies(node); }

}  // namespace halftone
