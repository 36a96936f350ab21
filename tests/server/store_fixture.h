// Stores to test with: of each kind, empty, and opened again as after the end of their process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "halftone/server/store.h"
#include "tests/server/postgres_cluster.h"
#include "tests/support/temp_dir.h"

namespace halftone::test {

// One for the whole program, started when it is first asked for. nullptr: there is no PostgreSQL.
PostgresCluster* shared_cluster();
inline constexpr const char* kNoPostgres =
    "PostgreSQL is not installed (there is no /usr/lib/postgresql/*/bin/initdb)";

// A database without tables, which no other test has.
std::string new_postgres_url();

class StoreTest : public testing::TestWithParam<std::string> {
 protected:
  static constexpr double kLeaseSeconds = 0.3;

  void SetUp() override;
  bool is_sqlite() const { return GetParam() == "sqlite"; }
  std::unique_ptr<Store> open();
  // The store's process dies with its jobs, and another one takes them over.
  void die();

  std::string submit(const std::string& owner = "", int priority = 0,
                     const std::string& kind = "generate", const std::string& model = "");
  std::string claim(const std::vector<std::string>& kinds = {"generate"});  // its id, or empty
  // True where it was not refused.
  bool end(const std::string& id, JobState state = JobState::kDone);
  JobState state(const std::string& id) { return store_->find(id).value().state; }
  std::vector<StoredEvent> all_events(const std::string& job = "") {
    return store_->events(0, job, 1 << 20);
  }

  std::unique_ptr<Store> store_;

 private:
  TempDir folder_;
  std::string url_;
};

bool end_job(Store& store, const std::string& id, JobState state = JobState::kDone);

}  // namespace halftone::test
