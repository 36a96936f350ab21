// Which job is next, and for how long: each test runs on both stores.
#include <gmock/gmock.h>

#include <chrono>
#include <map>
#include <random>

#include "tests/server/store_fixture.h"

namespace halftone {
namespace {

using testing::HasSubstr;

class StoreClaimsTest : public test::StoreTest {};

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TEST_P(StoreClaimsTest, ClaimsGoByPriorityThenFewestRunningThenAge) {
  const std::string a1 = submit("ann"), a2 = submit("ann"), a3 = submit("ann"), b1 = submit("bob"),
                    urgent = submit("ann", 5), b2 = submit("bob"), later = submit("cid", -1),
                    b3 = submit("bob");
  const std::vector<std::string> order = {urgent, b1, a1, b2, a2, b3, a3, later};
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(store_->place(store_->find(order[i]).value()), static_cast<int64_t>(i));
  }
  for (const std::string& id : order) EXPECT_EQ(claim(), id);
  EXPECT_EQ(claim(), "");
  EXPECT_EQ(store_->place(store_->find(a1).value()), 0);
  // Ann has four running, Bob three: when hers end, it is her turn.
  const std::string a4 = submit("ann"), b4 = submit("bob");
  EXPECT_EQ(claim(), b4);
  EXPECT_TRUE(end(a1) && end(a2));
  const std::string b5 = submit("bob"), a5 = submit("ann");
  EXPECT_EQ(claim(), a4);
  EXPECT_EQ(claim(), a5);
  EXPECT_EQ(claim(), b5);
}

TEST_P(StoreClaimsTest, PlaceIsTheOrderOfClaimsWhateverWaits) {
  std::mt19937 random(7);
  std::map<std::string, int64_t> places;
  for (int i = 0; i < 8; ++i) submit("owner" + std::to_string(random() % 3));
  for (int i = 0; i < 6; ++i) claim();
  for (int i = 0; i < 40; ++i) {
    submit("owner" + std::to_string(random() % 4), static_cast<int>(random() % 3), "generate",
           "model" + std::to_string(random() % 2));
  }
  for (const StoredJob& job : store_->list({"", JobState::kQueued, "", 100})) {
    places[job.id] = store_->place(job);
  }
  ASSERT_EQ(places.size(), 42u);
  for (int64_t i = 0; i < 42; ++i) EXPECT_EQ(places[claim()], i);
}

TEST_P(StoreClaimsTest, WishesAreKeptAndPeekingChangesNothing) {
  const std::string x = submit("", 0, "generate", "x"), y = submit("", 0, "generate", "y"),
                    train = submit("", 9, "train", "z");
  const auto peeked = [&](const JobWish& wish) {
    const int64_t events = store_->last_sequence();
    const auto job = store_->peek(wish);
    EXPECT_EQ(store_->last_sequence(), events);
    return job ? job->id : "";
  };
  EXPECT_EQ(peeked({{}, {}, {}}), "");
  EXPECT_EQ(peeked({{"quantize"}, {}, {}}), "");
  EXPECT_EQ(peeked({{"generate"}, {}, {}}), x);
  EXPECT_EQ(peeked({{"generate", "train"}, {}, {}}), train);
  EXPECT_EQ(peeked({{"generate", "train"}, {}, {"z", "x"}}), y);
  EXPECT_EQ(peeked({{"generate"}, {"y", "z"}, {}}), y);
  EXPECT_EQ(peeked({{"generate"}, {"y"}, {"y"}}), "");
  EXPECT_EQ(store_->counts().queued, 3);
  EXPECT_EQ(store_->claim({{"generate"}, {"y", "z"}, {}})->id, y);
  EXPECT_FALSE(store_->claim({{"generate"}, {"y", "z"}, {}}));
  EXPECT_EQ(store_->claim({{"generate"}, {}, {"z"}})->id, x);
  EXPECT_EQ(state(train), JobState::kQueued);
}

TEST_P(StoreClaimsTest, JobsWhoseDeadlineHasPassedAreFailed) {
  NewJob wanted;
  wanted.kind = "generate";
  wanted.deadline = now() - 1;
  const std::string late = store_->submit(wanted, 10)->id;
  wanted.deadline = now() + 1000;
  const std::string early = store_->submit(wanted, 10)->id;
  EXPECT_EQ(store_->peek({{"generate"}, {}, {}})->id, early);
  EXPECT_EQ(claim(), early);
  const StoredJob failed = store_->find(late).value();
  EXPECT_EQ(failed.state, JobState::kFailed);
  EXPECT_THAT(failed.error, HasSubstr(R"({"code":"timeout","field":"timeout","message":")"));
  EXPECT_GT(failed.finished, 0);
  EXPECT_EQ(failed.attempts, 0);
  EXPECT_THAT(all_events(late).back().data, HasSubstr(R"("state":"failed")"));
  wanted.deadline = 1;
  const std::string only = store_->submit(wanted, 10)->id;
  EXPECT_EQ(claim(), "");
  EXPECT_EQ(state(only), JobState::kFailed);
}

TEST_P(StoreClaimsTest, JobsOfAServerThatDiedAreTakenOverThreeTimes) {
  const std::string id = submit(), cancelled = submit();
  for (int attempt = 1; attempt <= Store::kMostAttempts; ++attempt) {
    const StoredJob job = store_->claim({{"generate"}, {}, {}}).value();
    EXPECT_EQ(job.id, id);
    EXPECT_EQ(job.attempts, attempt);
    EXPECT_EQ(job.resume, attempt > 1);
    if (attempt == 1) {
      EXPECT_EQ(claim(), cancelled);
      EXPECT_TRUE(store_->cancel(cancelled)->cancelling);
    }
    die();
    EXPECT_EQ(state(id), JobState::kQueued);
    EXPECT_EQ(store_->find(id)->server, "");
    EXPECT_EQ(state(cancelled), JobState::kCancelled);  // there is nobody left to cancel it
  }
  EXPECT_FALSE(store_->peek({{"generate"}, {}, {}}));
  EXPECT_EQ(claim(), "");
  EXPECT_EQ(state(id), JobState::kFailed);
  EXPECT_THAT(store_->find(id)->error, HasSubstr(R"("code":"attempts")"));
  // Who wants it may have it go on all the same.
  EXPECT_TRUE(store_->resume(id));
  EXPECT_EQ(store_->find(id)->error, "");
  EXPECT_EQ(claim(), id);
  EXPECT_EQ(store_->find(id)->attempts, 1);
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreClaimsTest, testing::Values("sqlite", "postgresql"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace halftone
