// Where jobs are kept, with their events and results, so that nothing that was answered is lost:
// not by a killed process, and, where several servers share a store, not with one of them.
//
// A job is queued, claimed by one server, and ended by it. While a server works on a job it holds a
// lease, which it renews; a job whose lease has run out is queued again, and what its former server
// still says of it is refused. All functions may be called from any thread, and throw Error{kIo}
// where the store fails.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone {

enum class JobState : uint8_t { kQueued, kRunning, kDone, kFailed, kCancelled };
std::string to_string(JobState state);  // "queued", ...
std::optional<JobState> parse_job_state(std::string_view name);
inline bool has_ended(JobState state) { return state >= JobState::kDone; }

// JSON is text here: a store does not look into it. Times are seconds since 1970; 0: not yet.
struct StoredJob {
  std::string id;
  std::string kind;   // "generate", "train", "quantize" or "compare"
  std::string model;  // what has to be loaded for it, so that jobs of one model are found together
  std::string owner;  // whose it is, for fairness: the name of a key, or empty
  int priority = 0;   // higher ones first
  JobState state = JobState::kQueued;
  std::string request, progress, summary, error;  // JSON, empty where there is none
  double created = 0, started = 0, finished = 0;
  double deadline = 0;      // when it is to have ended; 0: any time
  int attempts = 0;         // how often it was claimed, but for those that gave it back
  bool cancelling = false;  // someone wants it to end
  bool resume = false;      // goes on from what an earlier attempt has left
  std::string server;       // that holds the lease, while it runs
};

struct NewJob {
  std::string kind, model, owner, request;
  int priority = 0;
  double deadline = 0;
};

// Something that happened, in the order of `sequence` over all jobs.
struct StoredEvent {
  int64_t sequence = 0;
  std::string job, type;  // "state", "progress", "result", ...
  std::string data;       // JSON
  double time = 0;
};

// A result. What is large lies in a file of its own, and has a path; where other servers share the
// store it may have its bytes as well.
struct StoredFile {
  std::string name;     // "1.png", unique within its job
  std::string type;     // "image/png"
  std::string details;  // JSON: media, width, height, seed, ...
  std::string bytes;    // may be empty where there is a path
  std::string path;     // below the data folder
  int64_t size = 0;
};

// What a server says of a job that it works on: all of it is written, or nothing.
struct JobChange {
  std::string job;
  std::optional<std::string> progress;                      // in place of what was there
  std::vector<std::pair<std::string, std::string>> events;  // type and data
  std::vector<StoredFile> files;                            // in place of those of the same name
  // The end, which a "state" event tells after those above. `kQueued` gives the job back, to be
  // claimed again: by a server that stops. One that is to end is cancelled instead.
  std::optional<JobState> state;
  std::string summary, error;  // with a state; left as they are where empty
  std::optional<bool> resume;  // with `kQueued`, or for one that may be resumed later
};

struct JobFilter {
  std::string kind;  // empty: all
  std::optional<JobState> state;
  std::string before;  // older than this job; empty: from the newest on
  int limit = 50;
};

// What a server is ready for.
struct JobWish {
  std::vector<std::string> kinds;       // of these; none: nothing is claimed
  std::vector<std::string> models;      // only of these; empty: any
  std::vector<std::string> not_models;  // none of these
};

struct ApiKey {
  std::string name, hash;  // hash as auth.h makes it
  double created = 0;
};

class Store {
 public:
  virtual ~Store() = default;
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  virtual std::string name() const = 0;    // "sqlite", "postgresql"
  virtual std::string server() const = 0;  // this one's name, which no other has
  virtual bool is_shared() const = 0;      // with other servers, maybe

  // Queues a job, and tells its first event: state, {"job", "kind", "state"}. nullopt where
  // `most_queued` are waiting already.
  virtual std::optional<StoredJob> submit(const NewJob& job, int64_t most_queued) = 0;
  virtual std::optional<StoredJob> find(const std::string& id) = 0;
  virtual std::vector<StoredJob> list(const JobFilter& filter) = 0;  // the newest first
  // How many would be claimed before a queued one.
  virtual int64_t place(const StoredJob& job) = 0;
  struct Counts {
    int64_t queued = 0, running = 0;
  };
  virtual Counts counts() = 0;

  // The next job, with a lease for this server: of the highest priority; of these, one whose owner
  // has the fewest running; of these, the oldest. A "state" event is told. One whose deadline has
  // passed, or that has been claimed `kMostAttempts` times, is failed instead, and not returned.
  static constexpr int kMostAttempts = 3;
  virtual std::optional<StoredJob> claim(const JobWish& wish) = 0;
  // What would be claimed, without doing so.
  virtual std::optional<StoredJob> peek(const JobWish& wish) = 0;
  // Jobs whose lease this server does not hold (any more) are left out, and named.
  virtual std::vector<std::string> apply(std::span<const JobChange> changes) = 0;
  // Longer leases for all that this server holds; gives back jobs of servers that have gone (with
  // `resume` set). Called every few seconds.
  virtual void renew() = 0;
  // Of the jobs that this server holds, those that are to end.
  virtual std::vector<std::string> cancelling() = 0;

  // A queued job is cancelled at once; a running one is marked. nullopt: there is none.
  virtual std::optional<StoredJob> cancel(const std::string& id) = 0;
  // An ended job whose `resume` is set is queued again, with its attempts forgotten. False where it
  // cannot be.
  virtual bool resume(const std::string& id) = 0;
  // An ended job, with its events and files. False where there is none, or it has not ended.
  virtual bool remove(const std::string& id) = 0;

  // After `sequence`, of one job or (empty) of all. Of a job that has told thousands of events,
  // those that repeat themselves (progress, previews, checkpoints, points of curves) are thinned
  // out: the latest are all there, and of the older ones as many as a chart can show.
  virtual std::vector<StoredEvent> events(int64_t after, const std::string& job, int limit) = 0;
  virtual int64_t last_sequence() = 0;
  virtual std::vector<StoredFile> files(const std::string& job) = 0;  // without their bytes
  virtual std::optional<StoredFile> file(const std::string& job, const std::string& name) = 0;

  virtual void add_key(const ApiKey& key) = 0;  // an Error where there is one of that name
  virtual bool remove_key(const std::string& name) = 0;
  virtual std::vector<ApiKey> keys() = 0;

  // A copy of everything, while it is used; SQLite only, others are told how.
  virtual void backup(const std::string& path) = 0;

  // Called after something has changed, here or, where others share the store, there; from any
  // thread, and soon. May be called more often than needed. Returns when no call of the one before
  // is under way, so not from such a call.
  void on_change(std::function<void()> told) {
    std::unique_lock lock(told_mutex_);
    const std::shared_ptr<Told> before = told_;
    told_ = std::make_shared<Told>(std::move(told));
    told_ended_.wait(lock, [&] { return before->under_way == 0; });
  }

 protected:
  void tell() const {
    std::unique_lock lock(told_mutex_);
    const std::shared_ptr<Told> told = told_;
    if (!told->call) return;
    ++told->under_way;
    lock.unlock();
    const std::shared_ptr<void> end(nullptr, [&](void*) {
      const std::lock_guard again(told_mutex_);
      --told->under_way;
      told_ended_.notify_all();
    });
    told->call();
  }

 private:
  struct Told {
    explicit Told(std::function<void()> of) : call(std::move(of)) {}
    std::function<void()> call;
    int under_way = 0;
  };
  mutable std::mutex told_mutex_;  // a store may tell from a thread of its own
  mutable std::condition_variable told_ended_;
  std::shared_ptr<Told> told_ = std::make_shared<Told>(nullptr);
};

// Whoever looks after keys, or makes a copy, does so beside a server that runs.
enum class StoreUse : uint8_t { kServer, kBeside };
// In a file, with WAL: for one server alone, which another start on the same file is told. For it,
// running jobs of an earlier process are queued again, with `resume` set.
std::unique_ptr<Store> open_sqlite_store(const std::string& path, StoreUse use = StoreUse::kServer);
// "postgresql://...": for any number of servers. `lease_seconds` is how long a server may be silent
// before its jobs are taken over.
std::unique_ptr<Store> open_postgres_store(const std::string& url, double lease_seconds);

}  // namespace halftone
