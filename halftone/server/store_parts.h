// What the stores share beside their interface: ids of jobs, names of servers, and the JSON that
// they write themselves.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "halftone/server/store.h"

namespace halftone {

// 26 characters of Crockford's base 32, of which 10 are the milliseconds and the others random, so
// that ids sort by time. Greater than `last` (an id, or empty) in any case: of two in the same
// millisecond, or where the clock was set back, the second is the first plus one.
std::string next_job_id(double seconds, std::string_view last);

// No other server has it: the machine, the process, and something random.
std::string make_server_name();

// {"job": ..., "kind": ..., "state": ...}
std::string state_event(const std::string& job, const std::string& kind, JobState state);

// Why a job is failed that nobody may claim: {"code": ..., "message": ...}
std::string deadline_error();
std::string attempts_error();

// Where a job goes that its server has not ended.
inline JobState given_back(bool cancelling) {
  return cancelling ? JobState::kCancelled : JobState::kQueued;
}

// What `apply` may do to a job's state; throws what a caller must not ask for.
void check_change(const JobChange& change);

inline int64_t size_of(const StoredFile& file) {
  return file.bytes.empty() ? file.size : static_cast<int64_t>(file.bytes.size());
}

// Events that repeat themselves: a job's progress for weeks must not fill the disk. All of the
// latest are kept of each type; of older ones the first of each of so many spans of time, which
// become longer as the job does.
inline constexpr int64_t kMostEvents = 4096;  // of a job, before any go
inline constexpr int kRecentEvents = 512, kEventSpans = 1024;
inline constexpr std::string_view kRepeatedEvents =
    "'progress', 'preview', 'checkpoint', 'held_out', 'gradients'";

// Whose events are to be looked at: now and then, of those that tell many.
class EventCounts {
 public:
  bool is_due(const std::string& job, size_t told) {
    constexpr size_t kLookEvery = 256;
    const std::lock_guard lock(mutex_);
    size_t& count = counts_[job];
    count += told;
    if (count < kLookEvery) return false;
    count = 0;
    return true;
  }
  void forget(const std::string& job) {
    const std::lock_guard lock(mutex_);
    counts_.erase(job);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, size_t> counts_;  // of jobs that run here
};

// Where queued jobs stand, kept until an event is told: of a page of them, only the first asks the
// database. Whatever moves a job in the queue tells an event.
class Places {
 public:
  // `in_order` gives the ids of queued jobs as they would be claimed, no earlier than at
  // `sequence`.
  int64_t of(const std::string& id, int64_t sequence, const auto& in_order) {
    const std::lock_guard lock(mutex_);
    if (sequence != sequence_) {
      places_.clear();
      for (std::string& queued : in_order()) {
        places_.emplace(std::move(queued), static_cast<int64_t>(places_.size()));
      }
      sequence_ = sequence;
    }
    const auto found = places_.find(id);
    return found == places_.end() ? 0 : found->second;
  }

 private:
  std::mutex mutex_;
  int64_t sequence_ = -1;
  std::unordered_map<std::string, int64_t> places_;
};

}  // namespace halftone
