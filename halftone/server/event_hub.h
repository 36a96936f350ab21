// What happened lately, for everyone who watches: events of the store, kept in memory for as long
// as a client needs to catch up, and read from the store by those that have missed more.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "halftone/server/http_message.h"
#include "halftone/server/store.h"

namespace halftone {

class EventHub {
 public:
  // Reads from the store whenever it has changed.
  explicit EventHub(Store& store);
  ~EventHub();
  EventHub(const EventHub&) = delete;
  EventHub& operator=(const EventHub&) = delete;

  // After `sequence`, of one job or of all.
  std::vector<StoredEvent> after(int64_t sequence, const std::string& job, int limit);
  int64_t last() const;

  // `ready` is called after there may be more, from any thread, until it is taken back.
  int64_t watch(std::function<void()> ready);
  void unwatch(int64_t watcher);
  // `ended` is called once, from any thread, when this job has ended from now on; or never, where
  // it is taken back before.
  int64_t when_ended(const std::string& job, std::function<void()> ended);
  void forget(int64_t waiter);
  // Calls all who wait or watch: there will be no more.
  void let_go();
  bool is_over() const;

 private:
  void read();

  static constexpr size_t kKeptBytes = 256 << 10;
  Store& store_;
  mutable std::mutex mutex_;
  std::mutex reading_;
  std::deque<StoredEvent> events_;  // the last ones, in order
  size_t bytes_ = 0;                // that they take
  int64_t first_missing_ = 0;       // all after this are in `events_`
  int64_t last_ = 0;
  std::map<int64_t, std::function<void()>> watchers_;
  struct Waiter {
    std::string job;
    std::function<void()> ended;
  };
  std::map<int64_t, Waiter> waiters_;
  int64_t next_watcher_ = 0;
  bool over_ = false;
};

// Server-sent events: of one job until it has ended, or of all (an empty job) for ever.
class EventStream : public HttpStream {
 public:
  EventStream(EventHub& hub, std::string job, int64_t after);
  ~EventStream() override;
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;

  std::optional<std::string> next() override;
  std::string heartbeat() const override { return ": still here\n\n"; }
  void on_ready(std::function<void()> ready) override;

 private:
  EventHub& hub_;
  std::string job_;
  int64_t after_;
  int64_t watcher_ = -1;
  bool begun_ = false, ended_ = false;
};

// "event: ...", "id: ...", "data: ..." and an empty line. `data` gets "seq" and "time".
std::string to_sse(const StoredEvent& event);
// Whether it is a job's last one.
bool is_last(const StoredEvent& event);

}  // namespace halftone
