// The latest preview of every job that makes pictures: kept while it runs, and a little longer, for
// those who have just been told of it.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace halftone {

class Previews {
 public:
  void put(const std::string& job, std::string png) {
    auto shared = std::make_shared<const std::string>(std::move(png));
    const std::scoped_lock lock(mutex_);
    forget(job);
    latest_[job] = std::move(shared);
  }
  std::shared_ptr<const std::string> find(const std::string& job) const {
    const std::scoped_lock lock(mutex_);
    const auto found = latest_.find(job);
    return found == latest_.end() ? nullptr : found->second;
  }
  // Its job has ended: it stays until as many others have, or they take too much.
  void end(const std::string& job) {
    const std::scoped_lock lock(mutex_);
    const auto found = latest_.find(job);
    if (found == latest_.end()) return;
    ended_.push_back(job);
    ended_bytes_ += found->second->size();
    while (ended_.size() > kMostEnded || ended_bytes_ > kMostEndedBytes) {
      const std::string oldest = ended_.front();
      forget(oldest);
    }
  }
  // Its job is gone, or will be begun again.
  void remove(const std::string& job) {
    const std::scoped_lock lock(mutex_);
    forget(job);
  }

 private:
  static constexpr size_t kMostEnded = 16, kMostEndedBytes = 4 << 20;

  void forget(const std::string& job) {
    const auto found = latest_.find(job);
    if (found == latest_.end()) return;
    const auto ended = std::ranges::find(ended_, job);
    if (ended != ended_.end()) {
      ended_bytes_ -= found->second->size();
      ended_.erase(ended);
    }
    latest_.erase(found);
  }

  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const std::string>> latest_;
  std::deque<std::string> ended_;  // jobs, the oldest first
  size_t ended_bytes_ = 0;
};

}  // namespace halftone
