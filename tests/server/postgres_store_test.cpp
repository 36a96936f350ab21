// What several servers do to each other: three stores on one database stand for three servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "halftone/server/postgres_connection.h"
#include "tests/server/store_fixture.h"
#include "tests/support/errors.h"

namespace halftone {
namespace {

using test::end_job;
using test::error_of;
using testing::HasSubstr;

const JobWish kAnyPicture = {{"generate"}, {}, {}};

class PostgresStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::shared_cluster() == nullptr) GTEST_SKIP() << test::kNoPostgres;
    url_ = test::new_postgres_url();
  }
  std::unique_ptr<Store> open(double lease_seconds = 20) const {
    return open_postgres_store(url_, lease_seconds);
  }
  static std::string submit(Store& store, const std::string& owner = "") {
    NewJob job;
    job.kind = "generate";
    job.owner = owner;
    job.request = "{}";
    return store.submit(job, 1 << 20).value().id;
  }
  static void sleep(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  // As the administrator may: all connections of this test's stores but the one that asks.
  void cut_connections() const {
    postgres::Connection(url_).run_script(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'halftone' AND pid <> pg_backend_pid()");
  }
  std::string url_;
};

TEST_F(PostgresStoreTest, EveryJobIsDoneOnceWhenOneOfThreeServersDies) {
  constexpr int kJobs = 200;
  constexpr double kLease = 0.5;
  std::vector<std::unique_ptr<Store>> servers;
  for (int i = 0; i < 3; ++i) servers.push_back(open(kLease));
  std::vector<std::string> ids;
  for (int i = 0; i < kJobs; ++i) {
    ids.push_back(submit(*servers[static_cast<size_t>(i % 3)], "owner" + std::to_string(i % 5)));
  }
  std::mutex mutex;
  std::map<std::string, int> done;
  std::atomic<int> left = kJobs;
  const auto finish = [&](Store& store, const StoredJob& job) {
    JobChange change;
    change.job = job.id;
    change.events = {{"result", "{}"}};
    change.files = {{"1.png", "image/png", "{}", "picture of " + job.id, "", 0}};
    change.state = JobState::kDone;
    if (!store.apply({&change, 1}).empty()) return false;
    const std::lock_guard lock(mutex);
    ++done[job.id];
    --left;
    return true;
  };
  // The third server takes some jobs, finishes one, and is silent: it neither ends nor renews.
  std::vector<StoredJob> orphans;
  for (int i = 0; i < 6; ++i) orphans.push_back(servers[2]->claim(kAnyPicture).value());
  ASSERT_TRUE(finish(*servers[2], orphans.back()));
  orphans.pop_back();
  const auto work = [&](Store& store) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (int i = 0; left > 0 && std::chrono::steady_clock::now() < until; ++i) {
      if (i % 8 == 0) store.renew();
      const auto job = store.claim(kAnyPicture);
      if (job) {
        finish(store, *job);
      } else {
        sleep(0.02);
        store.renew();
      }
    }
  };
  std::vector<std::thread> threads;
  for (const int server : {0, 0, 1, 1}) {
    threads.emplace_back(work, std::ref(*servers[static_cast<size_t>(server)]));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(left, 0);
  EXPECT_EQ(done.size(), static_cast<size_t>(kJobs));
  std::map<std::string, int> told_done;
  for (const StoredEvent& event : servers[0]->events(0, "", 1 << 20)) {
    if (event.data.find(R"("state":"done")") != std::string::npos) ++told_done[event.job];
  }
  for (const std::string& id : ids) {
    EXPECT_EQ(done[id], 1);
    EXPECT_EQ(told_done[id], 1);
    EXPECT_EQ(servers[1]->find(id)->state, JobState::kDone);
    EXPECT_EQ(servers[1]->file(id, "1.png").value().bytes, "picture of " + id);
  }
  for (const StoredJob& orphan : orphans) {
    const StoredJob job = servers[0]->find(orphan.id).value();
    EXPECT_EQ(job.attempts, 2);
    EXPECT_TRUE(job.resume);
    // It comes back from the dead, and is not listened to.
    EXPECT_FALSE(end_job(*servers[2], orphan.id, JobState::kFailed));
    EXPECT_EQ(servers[0]->find(orphan.id)->state, JobState::kDone);
  }
}

TEST_F(PostgresStoreTest, WhoRenewsKeepsItsJobs) {
  const auto busy = open(0.4), other = open(0.4);
  const std::string id = submit(*busy), lost = submit(*busy);
  ASSERT_EQ(busy->claim(kAnyPicture)->id, id);
  ASSERT_EQ(other->claim(kAnyPicture)->id, lost);
  for (int i = 0; i < 7; ++i) {
    sleep(0.1);
    busy->renew();
  }
  EXPECT_EQ(busy->find(id)->server, busy->server());
  EXPECT_EQ(busy->find(lost)->state, JobState::kQueued);
  EXPECT_TRUE(end_job(*busy, id));
  // The other one claims it again: a lease that has run out is good as long as nobody took it.
  ASSERT_EQ(other->claim(kAnyPicture)->attempts, 2);
  sleep(0.5);
  EXPECT_TRUE(end_job(*other, lost));
}

TEST_F(PostgresStoreTest, OneServerCancelsWhatAnotherWorksOn) {
  const auto busy = open(), other = open();
  const std::string id = submit(*other);
  ASSERT_EQ(busy->claim(kAnyPicture)->id, id);
  EXPECT_TRUE(other->cancel(id)->cancelling);
  EXPECT_THAT(busy->cancelling(), testing::ElementsAre(id));
  EXPECT_THAT(other->cancelling(), testing::ElementsAre());
  EXPECT_FALSE(end_job(*other, id, JobState::kCancelled));
  EXPECT_TRUE(end_job(*busy, id, JobState::kCancelled));
}

// A number that is taken first may be committed last; then a reader would have passed it.
TEST_F(PostgresStoreTest, ReadersPassNoEventWhileSeveralServersWrite) {
  constexpr int kWriters = 6, kJobs = 20;
  std::vector<std::unique_ptr<Store>> servers;
  for (int i = 0; i < 3; ++i) servers.push_back(open());
  std::atomic<int> writing = kWriters;
  std::vector<std::thread> threads;
  for (int i = 0; i < kWriters; ++i) {
    threads.emplace_back([&, i] {
      Store& store = *servers[static_cast<size_t>(i % 3)];
      for (int n = 0; n < kJobs; ++n) {
        submit(store);
        const auto job = store.claim(kAnyPicture);
        if (!job) continue;
        JobChange change;
        change.job = job->id;
        // One takes long, others are short.
        change.files = {{"x", "", "", std::string(i == 0 ? 300'000 : 10, 'x'), "", 0}};
        change.events = {{"progress", "{}"}, {"result", "{}"}};
        change.state = JobState::kDone;
        store.apply({&change, 1});
      }
      --writing;
    });
  }
  std::vector<int64_t> seen;
  const auto read = [&] {
    for (const auto& event : servers[0]->events(seen.empty() ? 0 : seen.back(), "", 100)) {
      seen.push_back(event.sequence);
    }
  };
  while (writing > 0) read();
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 20; ++i) read();
  std::vector<int64_t> all;
  for (const StoredEvent& event : servers[1]->events(0, "", 1 << 20)) all.push_back(event.sequence);
  EXPECT_EQ(seen, all);
  EXPECT_GT(all.size(), 4u * kWriters * kJobs);
  EXPECT_EQ(static_cast<size_t>(all.back()), all.size());  // without gaps, too
  // Ids are in the order in which jobs were submitted, whichever server did.
  std::string last;
  for (const StoredEvent& event : servers[1]->events(0, "", 1 << 20)) {
    if (event.data.find(R"("state":"queued")") == std::string::npos) continue;
    EXPECT_LT(last, event.job);
    last = event.job;
  }
}

// Waits, at most some seconds, until it was told.
class Bell {
 public:
  std::function<void()> ring() {
    return [this] {
      const std::lock_guard lock(mutex_);
      ++rung_;
      changed_.notify_all();
    };
  }
  bool rings_within(double seconds) {
    std::unique_lock lock(mutex_);
    const bool rung = changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                                        [&] { return rung_ > heard_; });
    heard_ = rung_;
    return rung;
  }
  void forget(double after_seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(after_seconds));
    rings_within(0);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int rung_ = 0, heard_ = 0;
};

TEST_F(PostgresStoreTest, ServersHearOfEachOthersChanges) {
  Bell bell;
  const auto hearing = open(), other = open();
  hearing->on_change(bell.ring());
  bell.forget(0.2);
  submit(*other);
  EXPECT_TRUE(bell.rings_within(5));
  bell.forget(0.1);
  EXPECT_FALSE(bell.rings_within(0.1));  // nothing changes, and nothing is told
  EXPECT_FALSE(other->claim({{"train"}, {}, {}}));
  EXPECT_FALSE(bell.rings_within(0.1));
  cut_connections();
  EXPECT_TRUE(bell.rings_within(5));  // it listens again, and tells what it may have missed
  EXPECT_NE(error_of([&] { submit(*other); }), "(no error)");
  bell.forget(0.1);
  submit(*other);
  EXPECT_TRUE(bell.rings_within(5));
  hearing->on_change(nullptr);
}

TEST_F(PostgresStoreTest, ALostConnectionFailsOneCallAndIsMadeAgain) {
  const auto store = open();
  const std::string id = submit(*store);
  ASSERT_TRUE(store->claim(kAnyPicture));
  const auto fails_with_io = [&] {
    try {
      store->counts();
    } catch (const Error& error) {
      EXPECT_EQ(error.where(), "postgresql");
      return error.code() == ErrorCode::kIo;
    }
    return false;
  };
  cut_connections();
  EXPECT_TRUE(fails_with_io());
  EXPECT_EQ(store->counts().running, 1);
  test::shared_cluster()->restart();
  EXPECT_TRUE(fails_with_io());
  EXPECT_TRUE(end_job(*store, id));
  EXPECT_EQ(store->find(id)->state, JobState::kDone);
}

TEST_F(PostgresStoreTest, ServersThatStartAtOnceMakeTheTablesOnce) {
  std::vector<std::unique_ptr<Store>> servers(6);
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (auto& server : servers) {
    threads.emplace_back([&] {
      try {
        server = open();
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
        ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(failures, 0);
  std::set<std::string> names;
  for (const auto& server : servers) names.insert(server->server());
  EXPECT_EQ(names.size(), servers.size());
  submit(*servers[0]);
  EXPECT_EQ(servers[5]->counts().queued, 1);
}

TEST_F(PostgresStoreTest, OwnersAreServedFairlyByServersTogether) {
  const auto one = open(), two = open();
  for (int i = 0; i < 40; ++i) submit(*one, "many");
  for (int i = 0; i < 10; ++i) submit(*one, "few");
  std::atomic<int> claimed_of_few = 0;
  const auto claim_ten = [&](Store& store) {
    for (int i = 0; i < 10; ++i) claimed_of_few += store.claim(kAnyPicture)->owner == "few";
  };
  std::thread other([&] { claim_ten(*two); });
  claim_ten(*one);
  other.join();
  EXPECT_EQ(claimed_of_few, 10);
}

TEST_F(PostgresStoreTest, WhatItCannotUseIsSaid) {
  open();
  postgres::Connection(url_).run_script("UPDATE halftone_meta SET version = 77");
  EXPECT_THAT(
      error_of([&] { open(); }),
      HasSubstr("postgresql: the tables were made by a newer Halftone: their version is 77"));
  postgres::Connection(url_).run_script("UPDATE halftone_meta SET version = 1");
  const auto store = open();
  EXPECT_THAT(error_of([&] { store->backup("copy"); }), HasSubstr("pg_dump"));
  EXPECT_THAT(error_of([&] { submit(*store, std::string("a\0b", 3)); }), HasSubstr("NUL"));
  EXPECT_THAT(
      error_of([] { open_postgres_store("postgresql://h:secret@127.0.0.1:1/x", 1); }),
      testing::AllOf(HasSubstr("postgresql: cannot connect: "), testing::Not(HasSubstr("secret"))));
  EXPECT_THAT(error_of([] { open_postgres_store("not a url", 1); }), HasSubstr("cannot connect"));
}

}  // namespace
}  // namespace halftone
