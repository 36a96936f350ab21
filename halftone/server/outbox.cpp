#include "halftone/server/outbox.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/server/clock.h"

namespace halftone {
namespace {

// How far something is, which is soon told anew.
bool is_told_again(const JobChange& change) {
  return !change.state && change.files.empty() &&
         std::ranges::all_of(change.events, [](const auto& event) {
           return event.first == "progress" || event.first == "preview";
         });
}

}  // namespace

std::vector<std::string> Outbox::put(JobChange change) {
  // In order: no job is done before its pictures are there.
  const bool behind = std::ranges::any_of(
      waiting_, [&](const JobChange& other) { return other.job == change.job; });
  if (!behind) {
    try {
      return store_.apply({&change, 1});
    } catch (const Error& error) {
      constexpr double kEvery = 5;  // seconds
      const double now = steady_seconds();
      if (told_ == 0 || now - told_ > kEvery) {
        log_.warn("not stored, and tried again", {{"job", change.job}, {"why", error.what()}});
        told_ = now;
      }
    }
  }
  if (!is_told_again(change)) waiting_.push_back(std::move(change));
  return {};
}

std::vector<std::string> Outbox::put_again() {
  std::vector<JobChange> waiting;
  std::swap(waiting, waiting_);
  std::vector<std::string> lost;
  for (JobChange& change : waiting) {
    for (std::string& job : put(std::move(change))) lost.push_back(std::move(job));
  }
  return lost;
}

}  // namespace halftone
