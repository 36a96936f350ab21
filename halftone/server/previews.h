// The latest preview of every job that makes pictures: kept while it runs, and nowhere else.
#pragma once

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
    latest_[job] = std::move(shared);
  }
  std::shared_ptr<const std::string> find(const std::string& job) const {
    const std::scoped_lock lock(mutex_);
    const auto found = latest_.find(job);
    return found == latest_.end() ? nullptr : found->second;
  }
  void forget(const std::string& job) {
    const std::scoped_lock lock(mutex_);
    latest_.erase(job);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const std::string>> latest_;
};

}  // namespace halftone
