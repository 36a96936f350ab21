// What only a file can suffer: processes that are killed, full disks, a second server, another
// version.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "halftone/server/sqlite_database.h"
#include "tests/server/store_fixture.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

using test::error_of;
using testing::HasSubstr;

class SqliteStoreTest : public testing::Test {
 protected:
  std::string path() const { return (folder_ / "jobs.db").string(); }
  test::TempDir folder_;
};

NewJob new_job(const std::string& request = "{}") {
  NewJob job;
  job.kind = "generate";
  job.request = request;
  return job;
}

// What the child tells once the store has answered.
struct Promise {
  enum class What : char { kSubmitted, kHasFile, kDone, kCancelled } what{};
  char id[26] = {};
};

// Until it is killed: jobs are submitted, claimed, given results, ended and cancelled.
[[noreturn]] void work_until_killed(const std::string& path, int pipe) {
  const auto promise = [&](Promise::What what, const std::string& id) {
    Promise told;
    told.what = what;
    std::memcpy(told.id, id.data(), sizeof told.id);
    if (::write(pipe, &told, sizeof told) != sizeof told) ::_exit(1);
  };
  try {
    const auto store = open_sqlite_store(path);
    for (int i = 0;; ++i) {
      const std::string id = store->submit(new_job(std::string(1000, 'r')), 1 << 20).value().id;
      promise(Promise::What::kSubmitted, id);
      if (i % 7 == 0) {
        store->cancel(id);
        promise(Promise::What::kCancelled, id);
      }
      const auto job = store->claim({{"generate"}, {}, {}});
      if (!job) continue;
      JobChange change;
      change.job = job->id;
      change.progress = "{}";
      change.events = {{"progress", "{}"}};
      store->apply({&change, 1});
      change.files = {{"1.png", "image/png", "{}", std::string(30000, 'p'), "", 0}};
      store->apply({&change, 1});
      promise(Promise::What::kHasFile, job->id);
      change.files[0].name = "2.png";
      change.state = JobState::kDone;
      store->apply({&change, 1});
      promise(Promise::What::kDone, job->id);
    }
  } catch (const std::exception& error) {
    ::write(STDERR_FILENO, error.what(), std::strlen(error.what()));
    ::_exit(1);
  }
}

// All that was promised. The process is killed some time after it has made so many promises.
std::vector<Promise> run_and_kill(const std::string& path, size_t promised,
                                  std::chrono::microseconds after) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) work_until_killed(path, ends[1]);
  ::close(ends[1]);
  std::vector<Promise> promises;
  Promise promise;
  const auto read_one = [&] {
    if (::read(ends[0], &promise, sizeof promise) != sizeof promise) return false;
    promises.push_back(promise);
    return true;
  };
  while (promises.size() < promised && read_one()) {
  }
  EXPECT_EQ(promises.size(), promised);
  std::this_thread::sleep_for(after);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  while (read_one()) {
  }
  ::close(ends[0]);
  return promises;
}

TEST_F(SqliteStoreTest, LosesNothingToKillAtAnyMoment) {
  std::mt19937 random(3);
  std::map<std::string, std::set<Promise::What>> promised;
  std::set<std::string> were_queued_again;
  int64_t last_sequence = 0;
  for (int round = 0; round < 25; ++round) {
    const std::chrono::microseconds after(round % 2 * (random() % 3000));
    for (const Promise& promise : run_and_kill(path(), 1 + random() % 12, after)) {
      promised[std::string(promise.id, sizeof promise.id)].insert(promise.what);
    }
    const auto store = open_sqlite_store(path());
    std::map<std::string, StoredJob> jobs;
    JobFilter filter;
    filter.limit = 1 << 20;
    for (const StoredJob& job : store->list(filter)) jobs[job.id] = job;
    for (const auto& [id, whats] : promised) {
      ASSERT_TRUE(jobs.contains(id));
      if (whats.contains(Promise::What::kHasFile)) {
        EXPECT_EQ(store->file(id, "1.png").value().bytes, std::string(30000, 'p'));
      }
      if (whats.contains(Promise::What::kDone)) {
        EXPECT_EQ(jobs[id].state, JobState::kDone);
      }
      if (whats.contains(Promise::What::kCancelled)) {
        EXPECT_EQ(jobs[id].state, JobState::kCancelled);
      }
    }
    std::map<std::string, std::string> told;  // the last state of each
    int64_t sequence = 0;
    for (const StoredEvent& event : store->events(0, "", 1 << 20)) {
      EXPECT_GT(event.sequence, sequence);
      sequence = event.sequence;
      if (event.type == "state") told[event.job] = event.data;
    }
    EXPECT_GT(sequence, last_sequence);
    last_sequence = sequence;
    for (const auto& [id, job] : jobs) {
      EXPECT_NE(job.state, JobState::kRunning);
      EXPECT_EQ(job.finished > 0, has_ended(job.state));
      EXPECT_EQ(job.request.size(), 1000u);
      EXPECT_THAT(told[id], HasSubstr("\"state\":\"" + to_string(job.state) + "\""));
      if (job.state == JobState::kDone) {
        EXPECT_EQ(store->files(id).size(), 2u);
      }
      if (job.attempts > 0 && job.state == JobState::kQueued) {
        EXPECT_TRUE(job.resume);
        were_queued_again.insert(id);
      }
    }
  }
  EXPECT_GT(promised.size(), 25u);
  EXPECT_GT(were_queued_again.size(), 0u);
}

// Files of this process may not grow beyond a size while this lives.
class FullDisk {
 public:
  explicit FullDisk(uint64_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    signal_ = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit now = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, signal_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
  void (*signal_)(int) = nullptr;
};

TEST_F(SqliteStoreTest, WhatHasNoRoomSaysSo) {
  sqlite::Database database(path(), sqlite::Database::Access::kReadWrite);
  database.execute("CREATE TABLE large (bytes BLOB); PRAGMA max_page_count = 8");
  try {
    database.run("INSERT INTO large VALUES (zeroblob(100000))");
    ADD_FAILURE() << "there was room";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDiskFull);
    EXPECT_THAT(error.what(), HasSubstr("jobs.db: the disk is full"));
  }
}

TEST_F(SqliteStoreTest, AFullDiskIsAnErrorAndLosesNothing) {
  auto store = open_sqlite_store(path());
  const std::string first = store->submit(new_job(), 10).value().id;
  ASSERT_EQ(store->claim({{"generate"}, {}, {}})->id, first);
  JobChange end;
  end.job = first;
  end.files = {{"1.png", "image/png", "{}", std::string(3'000'000, 'p'), "", 0}};
  end.state = JobState::kDone;
  std::vector<std::string> submitted = {first};
  {
    const FullDisk full(1'000'000);
    const auto failure = [&](const auto& action) {
      try {
        action();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo);
        EXPECT_THAT(error.what(), HasSubstr("jobs.db: "));
        return true;
      }
      return false;
    };
    EXPECT_TRUE(failure([&] { store->apply({&end, 1}); }));
    EXPECT_EQ(store->find(first)->state, JobState::kRunning);
    EXPECT_EQ(store->files(first).size(), 0u);
    // What still has room is taken, and what was promised before stays.
    bool failed = false;
    for (int i = 0; i < 200 && !failed; ++i) {
      failed = failure([&] {
        submitted.push_back(store->submit(new_job(std::string(20000, 'r')), 1000).value().id);
      });
    }
    EXPECT_TRUE(failed);
    for (const std::string& id : submitted) EXPECT_TRUE(store->find(id));
    EXPECT_EQ(store->list({"", std::nullopt, "", 1000}).size(), submitted.size());
  }
  EXPECT_EQ(store->apply({&end, 1}).size(), 0u);  // and now there is room again
  store.reset();
  store = open_sqlite_store(path());
  EXPECT_EQ(store->find(first)->state, JobState::kDone);
  EXPECT_EQ(store->file(first, "1.png")->bytes.size(), 3'000'000u);
  EXPECT_EQ(store->list({"", std::nullopt, "", 1000}).size(), submitted.size());
}

TEST_F(SqliteStoreTest, ASecondServerIsTurnedAway) {
  auto store = open_sqlite_store(path());
  EXPECT_EQ(error_of([&] { open_sqlite_store(path()); }),
            path() + ": is in use by another server, process " + std::to_string(::getpid()) +
                "; one at a time can, or several with PostgreSQL");
  store->submit(new_job(), 10);
  const std::string server = store->server();
  store.reset();
  store = open_sqlite_store(path());
  EXPECT_NE(store->server(), server);
  EXPECT_EQ(store->counts().queued, 1);
}

TEST_F(SqliteStoreTest, OnlyItsOwnerReadsIt) {
  const auto store = open_sqlite_store(path());
  store->submit(new_job(), 10);
  for (const char* suffix : {"", "-wal", ".lock"}) {
    struct stat status{};
    ASSERT_EQ(::stat((path() + suffix).c_str(), &status), 0) << suffix;
    EXPECT_EQ(status.st_mode & 0777, 0600u) << suffix;
  }
}

TEST_F(SqliteStoreTest, OtherFilesAreRefused) {
  open_sqlite_store(path());
  {
    sqlite::Database database(path(), sqlite::Database::Access::kReadWrite);
    database.execute("PRAGMA user_version = 77");
  }
  EXPECT_THAT(error_of([&] { open_sqlite_store(path()); }),
              HasSubstr("jobs.db: was written by a newer Halftone: its version is 77, and"));
  const std::string other = (folder_ / "other.db").string();
  {
    sqlite::Database database(other, sqlite::Database::Access::kReadWrite);
    database.execute("CREATE TABLE jobs (x)");
  }
  EXPECT_THAT(error_of([&] { open_sqlite_store(other); }), HasSubstr("a database of something"));
  test::write_file(folder_ / "text", std::string(5000, 'x'));
  EXPECT_THAT(error_of([&] { open_sqlite_store((folder_ / "text").string()); }),
              HasSubstr("text: file is not a database"));
  EXPECT_EQ(test::read_file(folder_ / "text"), std::string(5000, 'x'));
  EXPECT_THAT(error_of([&] { open_sqlite_store((folder_ / "missing/jobs.db").string()); }),
              HasSubstr("No such file"));
}

TEST_F(SqliteStoreTest, ABackupIsAStoreOfItsOwn) {
  const auto store = open_sqlite_store(path());
  const std::string id = store->submit(new_job(), 10)->id;
  store->add_key({"ann", "hash", 1});
  test::write_file(folder_ / "copy.db", "what was there before");
  std::atomic<bool> stop = false;
  std::thread writer([&] {  // a backup does not wait for a pause
    while (!stop) store->submit(new_job(), 1 << 20);
  });
  store->backup((folder_ / "copy.db").string());
  stop = true;
  writer.join();
  const auto copy = open_sqlite_store((folder_ / "copy.db").string());
  EXPECT_EQ(copy->find(id)->state, JobState::kQueued);
  EXPECT_EQ(copy->keys().size(), 1u);
  EXPECT_EQ(copy->last_sequence(), copy->counts().queued);
  EXPECT_THAT(error_of([&] { store->backup((folder_ / "missing/copy.db").string()); }),
              HasSubstr("there is no folder"));
}

}  // namespace
}  // namespace halftone
