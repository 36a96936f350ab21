// The store of several servers: PostgreSQL. Times are the database's. Who writes takes locks in one
// order, jobs (by id) and then the counter of events; who takes the counter first (`submit` and
// `claim`, which so go one after another) waits for no job, and passes over those that are locked.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "halftone/server/postgres_connection.h"
#include "halftone/server/postgres_listener.h"
#include "halftone/server/store.h"
#include "halftone/server/store_parts.h"

// Seconds since 1970, in SQL.
#define HT_PG_NOW "extract(epoch from clock_timestamp())::float8"

namespace halftone::postgres {

// What a client was promised stays even if the database's machine fails; what can be told again
// need not.
inline constexpr auto kPromised = Transaction::Sync::kCommits,
                      kRepeatable = Transaction::Sync::kNot;

// Of halftone_jobs AS job, as job_of reads them.
inline constexpr const char* kJobColumns =
    "job.id, job.kind, job.model, job.owner, job.rank, job.state, job.request, job.progress, "
    "job.summary, job.error, job.created, job.started, job.finished, job.deadline, job.attempts, "
    "job.cancelling, job.resume, job.server";

StoredJob job_of(const Result& rows, int row);

class PostgresStore final : public Store {
 public:
  PostgresStore(const std::string& url, double lease_seconds);

  std::string name() const override { return "postgresql"; }
  std::string server() const override { return server_; }
  bool is_shared() const override { return true; }

  std::optional<StoredJob> submit(const NewJob& job, int64_t most_queued) override;
  std::optional<StoredJob> find(const std::string& id) override;
  std::vector<StoredJob> list(const JobFilter& filter) override;
  int64_t place(const StoredJob& job) override;
  Counts counts() override;

  std::optional<StoredJob> claim(const JobWish& wish) override;
  std::optional<StoredJob> peek(const JobWish& wish) override;
  std::vector<std::string> apply(std::span<const JobChange> changes) override;
  void renew() override;
  std::vector<std::string> cancelling() override;

  std::optional<StoredJob> cancel(const std::string& id) override;
  bool resume(const std::string& id) override;
  bool remove(const std::string& id) override;

  std::vector<StoredEvent> events(int64_t after, const std::string& job, int limit) override;
  int64_t last_sequence() override;
  std::vector<StoredFile> files(const std::string& job) override;
  std::optional<StoredFile> file(const std::string& job, const std::string& name) override;

  void add_key(const ApiKey& key) override;
  bool remove_key(const std::string& name) override;
  std::vector<ApiKey> keys() override;

  void backup(const std::string& path) override;

 private:
  struct Held {
    std::string kind;
    bool cancelling = false;
  };
  using HeldJobs = std::map<std::string, Held>;
  // Told at the end of a transaction, since that takes the counter.
  using Events = std::vector<StoredEvent>;

  std::optional<StoredJob> get(Connection& connection, const std::string& id, bool lock = false);
  std::optional<StoredJob> next(Connection& connection, const JobWish& wish, bool lock);
  std::optional<StoredJob> claim_next(Connection& connection, const JobWish& wish);
  void fail_hopeless(Connection& connection, Events& events);
  void apply_one(Connection& connection, const JobChange& change, HeldJobs& held, Events& events);
  void give_back(Connection& connection, const std::string& id, const Held& job, Events& events);
  void end(Connection& connection, const std::string& id, const std::string& kind, JobState state,
           Events& events);
  void take_over(Connection& connection);
  void thin_events(Connection& connection, const JobChange& change);
  // Tells the events, and everyone that there is something new.
  void commit(Connection& connection, Transaction& transaction, const Events& events);

  static StoredEvent state_of(const std::string& id, const std::string& kind, JobState state) {
    return {0, id, "state", state_event(id, kind, state), 0};
  }

  const std::string server_ = make_server_name();
  const double lease_seconds_;
  Pool pool_;
  Places places_;
  EventCounts told_;
  std::optional<Listener> listener_;  // the last member: its thread uses the others
};

}  // namespace halftone::postgres
