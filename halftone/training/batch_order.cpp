#include "halftone/training/batch_order.h"

#include <algorithm>
#include <map>

#include "halftone/base/error.h"
#include "halftone/training/draws.h"

namespace halftone {

BatchOrder::BatchOrder(std::vector<std::string> sizes, int64_t batch, uint64_t seed)
    : sizes_(std::move(sizes)), batch_(batch), seed_(seed) {
  HT_ASSERT(!sizes_.empty() && batch_ > 0);
}

void BatchOrder::begin_epoch() {
  std::vector<std::pair<uint32_t, size_t>> order;
  const PhiloxKey key = draw_key(seed_, Draw::kOrder, static_cast<uint64_t>(epoch_), 0);
  for (size_t i = 0; i < sizes_.size(); ++i) order.emplace_back(philox_word(key, i), i);
  std::sort(order.begin(), order.end());
  std::map<std::string, std::vector<size_t>> open;  // by size
  left_.clear();
  for (const auto& [word, i] : order) {
    auto& batch = open[sizes_[i]];
    batch.push_back(i);
    if (static_cast<int64_t>(batch.size()) < batch_) continue;
    left_.push_back(std::move(batch));
    batch.clear();
  }
  for (auto& [size, batch] : open) {
    if (batch.empty()) continue;
    for (size_t i = 0; static_cast<int64_t>(batch.size()) < batch_; ++i) batch.push_back(batch[i]);
    left_.push_back(std::move(batch));
  }
  std::reverse(left_.begin(), left_.end());
  ++epoch_;
}

std::vector<size_t> BatchOrder::next() {
  if (left_.empty()) begin_epoch();
  std::vector<size_t> batch = std::move(left_.back());
  left_.pop_back();
  return batch;
}

void BatchOrder::seek(const Position& position) {
  left_.clear();
  epoch_ = position.epoch;
  if (position.left == 0) return;
  --epoch_;
  begin_epoch();
  if (position.left < 0 || position.left > static_cast<int64_t>(left_.size())) {
    throw Error(ErrorCode::kInvalidInput, "position", "an epoch has {} batches, not {}",
                left_.size(), position.left);
  }
  left_.resize(static_cast<size_t>(position.left));
}

}  // namespace halftone
