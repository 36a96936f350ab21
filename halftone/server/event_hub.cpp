#include "halftone/server/event_hub.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/server/api_error.h"

namespace halftone {
namespace {

size_t bytes_of(const StoredEvent& event) {
  return sizeof event + event.job.capacity() + event.type.capacity() + event.data.capacity();
}

}  // namespace

EventHub::EventHub(Store& store) : store_(store) {
  last_ = first_missing_ = store_.last_sequence();
  store_.on_change([this] { read(); });
}

EventHub::~EventHub() { store_.on_change({}); }

void EventHub::read() {
  std::vector<std::function<void()>> told;
  try {
    const std::scoped_lock one(reading_);
    for (;;) {
      constexpr int kAtOnce = 1000;
      const std::vector<StoredEvent> more = store_.events(last(), "", kAtOnce);
      const std::scoped_lock lock(mutex_);
      for (const StoredEvent& event : more) {
        events_.push_back(event);
        bytes_ += bytes_of(events_.back());
        last_ = event.sequence;
        if (waiters_.empty() || !is_last(event)) continue;
        for (auto it = waiters_.begin(); it != waiters_.end();) {
          if (it->second.job != event.job) {
            ++it;
            continue;
          }
          told.push_back(std::move(it->second.ended));
          it = waiters_.erase(it);
        }
      }
      while (bytes_ > kKeptBytes) {
        first_missing_ = events_.front().sequence;
        bytes_ -= bytes_of(events_.front());
        events_.pop_front();
      }
      if (more.size() < kAtOnce) break;
    }
  } catch (const Error&) {
    // Those that were not read come with the next change.
  }
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [id, ready] : watchers_) told.push_back(ready);
  }
  for (const auto& ready : told) ready();
}

int64_t EventHub::last() const {
  const std::scoped_lock lock(mutex_);
  return last_;
}

std::vector<StoredEvent> EventHub::after(int64_t sequence, const std::string& job, int limit) {
  {
    const std::scoped_lock lock(mutex_);
    if (sequence >= first_missing_) {
      std::vector<StoredEvent> found;
      const auto begin = std::ranges::upper_bound(events_, sequence, {}, &StoredEvent::sequence);
      for (auto it = begin; it != events_.end() && static_cast<int>(found.size()) < limit; ++it) {
        if (job.empty() || it->job == job) found.push_back(*it);
      }
      return found;
    }
  }
  return store_.events(sequence, job, limit);
}

int64_t EventHub::watch(std::function<void()> ready) {
  const std::scoped_lock lock(mutex_);
  watchers_[++next_watcher_] = std::move(ready);
  return next_watcher_;
}

int64_t EventHub::when_ended(const std::string& job, std::function<void()> ended) {
  const std::scoped_lock lock(mutex_);
  waiters_[++next_watcher_] = {job, std::move(ended)};
  return next_watcher_;
}

void EventHub::forget(int64_t waiter) {
  const std::scoped_lock lock(mutex_);
  waiters_.erase(waiter);
}

void EventHub::let_go() {
  std::map<int64_t, Waiter> waiters;
  std::map<int64_t, std::function<void()>> watchers;
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
    std::swap(waiters, waiters_);
    watchers = watchers_;
  }
  for (const auto& [id, waiter] : waiters) waiter.ended();
  for (const auto& [id, ready] : watchers) ready();
}

bool EventHub::is_over() const {
  const std::scoped_lock lock(mutex_);
  return over_;
}

void EventHub::unwatch(int64_t watcher) {
  const std::scoped_lock lock(mutex_);
  watchers_.erase(watcher);
}

std::string to_sse(const StoredEvent& event) {
  auto data = nlohmann::ordered_json::parse(event.data, nullptr, false);
  if (!data.is_object()) data = nlohmann::ordered_json::object();
  data["seq"] = event.sequence;
  data["time"] = event.time;
  return fmt::format("event: {}\nid: {}\ndata: {}\n\n", event.type, event.sequence, dump(data));
}

bool is_last(const StoredEvent& event) {
  if (event.type != "state") return false;
  const auto data = nlohmann::json::parse(event.data, nullptr, false);
  const auto state = parse_job_state(data.is_object() ? data.value("state", "") : "");
  return state && has_ended(*state);
}

EventStream::EventStream(EventHub& hub, std::string job, int64_t after)
    : hub_(hub), job_(std::move(job)), after_(after) {}

EventStream::~EventStream() { EventStream::on_ready({}); }

void EventStream::on_ready(std::function<void()> ready) {
  if (watcher_ >= 0) hub_.unwatch(watcher_);
  watcher_ = ready ? hub_.watch(std::move(ready)) : -1;
}

std::optional<std::string> EventStream::next() {
  if (ended_) return std::nullopt;
  constexpr int kAtOnce = 256;
  std::string text;
  if (!begun_) text = "retry: 2000\n\n";
  begun_ = true;
  const bool over = hub_.is_over();  // asked before, so that nothing told until then is left out
  std::vector<StoredEvent> more;
  try {
    more = hub_.after(after_, job_, kAtOnce);
  } catch (const Error&) {
    return std::nullopt;  // the client comes back
  }
  for (const StoredEvent& event : more) {
    after_ = event.sequence;
    text += to_sse(event);
    // A job that was resumed goes on after an end.
    ended_ = !job_.empty() && is_last(event) && &event == &more.back() &&
             hub_.after(after_, job_, 1).empty();
  }
  if (over && text.empty()) return std::nullopt;
  return text;
}

}  // namespace halftone
