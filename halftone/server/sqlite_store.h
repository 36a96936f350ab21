// The store of one server: a SQLite file, one connection to it, and one thread at a time in it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "halftone/server/sqlite_database.h"
#include "halftone/server/sqlite_file.h"
#include "halftone/server/store.h"
#include "halftone/server/store_parts.h"

namespace halftone::sqlite {

// What a client was promised stays even if the machine fails; what can be told again need not.
inline constexpr auto kPromised = Transaction::Sync::kCommits,
                      kRepeatable = Transaction::Sync::kNot;

double store_seconds();  // since 1970

class SqliteStore final : public Store {
 public:
  SqliteStore(const std::string& path, StoreUse use);

  std::string name() const override { return "sqlite"; }
  std::string server() const override { return server_; }
  bool is_shared() const override { return false; }

  std::optional<StoredJob> submit(const NewJob& job, int64_t most_queued) override;
  std::optional<StoredJob> find(const std::string& id) override;
  std::vector<StoredJob> list(const JobFilter& filter) override;
  int64_t place(const StoredJob& job) override;
  Counts counts() override;

  std::optional<StoredJob> claim(const JobWish& wish) override;
  std::optional<StoredJob> peek(const JobWish& wish) override;
  std::vector<std::string> apply(std::span<const JobChange> changes) override;
  void renew() override {}  // there is no other server that could take them
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

  void backup(const std::string& path) override { copy_file(database_.path(), path); }

 private:
  // These are called with the mutex held.
  std::optional<StoredJob> get(const std::string& id);
  std::optional<std::string> next_id(const JobWish& wish);
  bool fail_hopeless();
  bool apply_one(const JobChange& change);
  void put_file(const std::string& job, const StoredFile& file);
  void give_back_running();
  void give_back(const std::string& id, const std::string& kind, bool cancelling);
  void end(const std::string& id, const std::string& kind, JobState state);
  void thin_events(const std::string& id, size_t told);
  void add_event(const std::string& job, const std::string& type, const std::string& data);
  void add_state_event(const std::string& job, const std::string& kind, JobState state) {
    add_event(job, "state", state_event(job, kind, state));
  }

  const std::string server_ = make_server_name();
  std::mutex mutex_;
  std::unique_ptr<FileLock> lock_;  // none beside a server
  Database database_;
  std::string last_id_;
  Places places_;
  EventCounts told_;
};

}  // namespace halftone::sqlite
