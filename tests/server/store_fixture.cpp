#include "tests/server/store_fixture.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

namespace halftone::test {
namespace {

class SharedCluster : public testing::Environment {
 public:
  PostgresCluster* get() {
    if (!started_) cluster_ = PostgresCluster::start();
    started_ = true;
    return cluster_.get();
  }
  void TearDown() override { cluster_.reset(); }

 private:
  bool started_ = false;
  std::unique_ptr<PostgresCluster> cluster_;
};

SharedCluster* const kShared =
    static_cast<SharedCluster*>(testing::AddGlobalTestEnvironment(new SharedCluster));

}  // namespace

PostgresCluster* shared_cluster() { return kShared->get(); }

std::string new_postgres_url() {
  static int count = 0;
  return shared_cluster()->url(fmt::format("test_{}", ++count));
}

void StoreTest::SetUp() {
  if (!is_sqlite()) {
    if (shared_cluster() == nullptr) GTEST_SKIP() << kNoPostgres;
    url_ = new_postgres_url();
  }
  store_ = open();
}

std::unique_ptr<Store> StoreTest::open() {
  if (is_sqlite()) return open_sqlite_store((folder_ / "jobs.db").string());
  return open_postgres_store(url_, kLeaseSeconds);
}

void StoreTest::die() {
  store_.reset();
  if (!is_sqlite()) std::this_thread::sleep_for(std::chrono::duration<double>(kLeaseSeconds));
  store_ = open();
  store_->renew();
}

std::string StoreTest::submit(const std::string& owner, int priority, const std::string& kind,
                              const std::string& model) {
  NewJob job;
  job.kind = kind;
  job.model = model;
  job.owner = owner;
  job.priority = priority;
  job.request = "{}";
  return store_->submit(job, 1 << 20).value().id;
}

std::string StoreTest::claim(const std::vector<std::string>& kinds) {
  const auto job = store_->claim({kinds, {}, {}});
  return job ? job->id : "";
}

bool end_job(Store& store, const std::string& id, JobState state) {
  JobChange change;
  change.job = id;
  change.state = state;
  return store.apply({&change, 1}).empty();
}

bool StoreTest::end(const std::string& id, JobState state) { return end_job(*store_, id, state); }

}  // namespace halftone::test
