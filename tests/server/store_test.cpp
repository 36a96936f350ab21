// What every store does: each test runs on SQLite and on a PostgreSQL of its own.
#include "halftone/server/store.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "halftone/server/store_parts.h"
#include "tests/server/store_fixture.h"
#include "tests/support/errors.h"

namespace halftone {
namespace {

using test::StoreTest;
using testing::ElementsAre;
using testing::HasSubstr;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<std::string> ids_of(const std::vector<StoredJob>& jobs) {
  std::vector<std::string> ids;
  for (const StoredJob& job : jobs) ids.push_back(job.id);
  return ids;
}

TEST(JobIds, SortByTimeAndGrowEvenWhenTheClockDoesNot) {
  const std::string first = next_job_id(1700000000.5, "");
  EXPECT_EQ(first.size(), 26u);
  EXPECT_EQ(first.find_first_not_of("0123456789ABCDEFGHJKMNPQRSTVWXYZ"), std::string::npos);
  EXPECT_EQ(first.substr(0, 10), "01HF7YATFM");  // 1700000000500 in base 32
  EXPECT_NE(first, next_job_id(1700000000.5, ""));
  EXPECT_EQ(next_job_id(1700000000.5, "01HF7YATFM0000000000000000"), "01HF7YATFM0000000000000001");
  EXPECT_EQ(next_job_id(0, "01HF7YATFM00000000000009ZZ"), "01HF7YATFM0000000000000A00");
  EXPECT_EQ(next_job_id(0, "01HF7YATFMZZZZZZZZZZZZZZZZ"), "01HF7YATFN0000000000000000");
  EXPECT_GT(next_job_id(1700000001, first), first);
  EXPECT_EQ(next_job_id(1700000001, first).substr(0, 10), "01HF7YATZ8");
  EXPECT_EQ(next_job_id(1700000000.5, "something else").substr(0, 10), "01HF7YATFM");
}

TEST(JobStates, HaveNames) {
  for (const JobState state : {JobState::kQueued, JobState::kRunning, JobState::kDone,
                               JobState::kFailed, JobState::kCancelled}) {
    EXPECT_EQ(parse_job_state(to_string(state)), state);
  }
  EXPECT_EQ(to_string(JobState::kCancelled), "cancelled");
  EXPECT_EQ(parse_job_state("Done"), std::nullopt);
}

TEST_P(StoreTest, AJobIsQueuedClaimedAndDone) {
  EXPECT_EQ(store_->name(), GetParam());
  const double before = seconds_now();
  NewJob wanted;
  wanted.kind = "train";
  wanted.model = "a/model";
  wanted.owner = "ann";
  wanted.priority = -7;
  wanted.request = R"({"steps": 3})";
  wanted.deadline = before + 1000.25;
  const StoredJob queued = store_->submit(wanted, 1).value();
  EXPECT_EQ(queued.kind, "train");
  EXPECT_EQ(queued.model, "a/model");
  EXPECT_EQ(queued.owner, "ann");
  EXPECT_EQ(queued.priority, -7);
  EXPECT_EQ(queued.request, wanted.request);
  EXPECT_EQ(queued.deadline, wanted.deadline);
  EXPECT_EQ(queued.state, JobState::kQueued);
  EXPECT_NEAR(queued.created, before, 5);
  EXPECT_EQ(queued.started + queued.finished + queued.attempts, 0);
  EXPECT_EQ(queued.server, "");
  EXPECT_EQ(store_->submit(wanted, 1), std::nullopt);  // one is waiting already
  EXPECT_EQ(store_->counts().queued, 1);

  const StoredJob running = store_->claim({{"quantize", "train"}, {}, {}}).value();
  EXPECT_EQ(running.id, queued.id);
  EXPECT_EQ(running.state, JobState::kRunning);
  EXPECT_EQ(running.attempts, 1);
  EXPECT_EQ(running.server, store_->server());
  EXPECT_GE(running.started, queued.created);
  EXPECT_EQ(store_->counts().queued, 0);
  EXPECT_EQ(store_->counts().running, 1);

  JobChange step;
  step.job = running.id;
  step.progress = R"({"step": 1})";
  step.events = {{"progress", R"({"step": 1})"}, {"held_out", "{}"}};
  EXPECT_THAT(store_->apply({&step, 1}), ElementsAre());
  EXPECT_EQ(store_->find(running.id)->progress, R"({"step": 1})");
  JobChange last;
  last.job = running.id;
  last.events = {{"result", R"({"name": "1.png"})"}};
  last.files = {{"1.png", "image/png", R"({"seed": 1})", "bytes", "", 0},
                {"lora.safetensors", "application/octet-stream", "{}", "", "jobs/x/lora", 1234}};
  last.state = JobState::kDone;
  last.summary = R"({"seconds": 2})";
  last.resume = true;
  EXPECT_THAT(store_->apply({&last, 1}), ElementsAre());

  const StoredJob done = store_->find(running.id).value();
  EXPECT_EQ(done.state, JobState::kDone);
  EXPECT_EQ(done.summary, last.summary);
  EXPECT_EQ(done.error, "");
  EXPECT_EQ(done.progress, R"({"step": 1})");
  EXPECT_TRUE(done.resume);
  EXPECT_GE(done.finished, done.started);
  EXPECT_EQ(done.server, "");
  const auto files = store_->files(done.id);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "1.png");
  EXPECT_EQ(files[0].type, "image/png");
  EXPECT_EQ(files[0].details, R"({"seed": 1})");
  EXPECT_EQ(files[0].bytes, "");
  EXPECT_EQ(files[0].size, 5);
  EXPECT_EQ(files[1].path, "jobs/x/lora");
  EXPECT_EQ(files[1].size, 1234);
  EXPECT_EQ(store_->file(done.id, "1.png")->bytes, "bytes");
  EXPECT_EQ(store_->file(done.id, "lora.safetensors")->path, "jobs/x/lora");
  EXPECT_FALSE(store_->file(done.id, "2.png"));
  EXPECT_FALSE(store_->find("none"));

  std::vector<std::string> told;
  for (const StoredEvent& event : all_events()) {
    EXPECT_EQ(event.job, done.id);
    EXPECT_NEAR(event.time, before, 5);
    told.push_back(event.type + " " + event.data);
  }
  const auto state_told = [&](const std::string& name) {
    return R"(state {"job":")" + done.id + R"(","kind":"train","state":")" + name + "\"}";
  };
  EXPECT_THAT(told,
              ElementsAre(state_told("queued"), state_told("running"), R"(progress {"step": 1})",
                          "held_out {}", R"(result {"name": "1.png"})", state_told("done")));
}

TEST_P(StoreTest, TextsAndBytesComeBackAsTheyWere) {
  std::string every_byte;
  for (int i = 0; i < 512; ++i) every_byte += static_cast<char>(i);
  const std::string strange =
      "'; DROP TABLE jobs; -- \"\\ {,} $1 ?1 %s \t\n \u00e9\u4e16 \U0001F3A8";
  const std::string large = "{\"prompt\": \"" + std::string(1 << 20, 'x') + "\U0001F600\"}";
  NewJob wanted;
  wanted.kind = wanted.model = wanted.owner = strange;
  wanted.request = large;
  const std::string id = store_->submit(wanted, 10).value().id;
  EXPECT_FALSE(store_->claim({{strange + "x", "{", "\\"}, {}, {}}));
  EXPECT_FALSE(store_->claim({{strange}, {"other"}, {}}));
  ASSERT_EQ(store_->claim({{"x", strange}, {strange}, {"\"", ","}}).value().id, id);
  std::string picture;
  picture.resize(20'000'000);
  std::mt19937 random(1);
  for (size_t i = 0; i < picture.size(); i += 97) picture[i] = static_cast<char>(random());
  JobChange change;
  change.job = id;
  change.progress = strange;
  change.events = {{strange, large}};
  change.files = {{strange, strange, strange, every_byte, "", 0},
                  {"large", "image/png", "{}", picture, "", 0}};
  change.state = JobState::kFailed;
  change.summary = large;
  change.error = strange;
  EXPECT_THAT(store_->apply({&change, 1}), ElementsAre());
  die();
  const StoredJob job = store_->find(id).value();
  for (const std::string& text : {job.kind, job.model, job.owner, job.progress, job.error}) {
    EXPECT_EQ(text, strange);
  }
  EXPECT_TRUE(job.request == large && job.summary == large);
  EXPECT_EQ(store_->list({strange, std::nullopt, "", 5}).size(), 1u);
  EXPECT_EQ(store_->file(id, strange)->bytes, every_byte);
  EXPECT_EQ(store_->files(id)[0].details, strange);
  EXPECT_TRUE(store_->file(id, "large")->bytes == picture);
  EXPECT_EQ(store_->files(id)[1].size, 20'000'000);
  EXPECT_TRUE(all_events(id)[2].data == large);
  EXPECT_EQ(all_events(id)[2].type, strange);
}

TEST_P(StoreTest, CancellingDependsOnTheState) {
  EXPECT_FALSE(store_->cancel("none"));
  const std::string running = submit(), queued = submit();
  ASSERT_EQ(claim(), running);
  const StoredJob cancelled = store_->cancel(queued).value();
  EXPECT_EQ(cancelled.state, JobState::kCancelled);
  EXPECT_GT(cancelled.finished, 0);
  EXPECT_THAT(all_events(queued).back().data, HasSubstr(R"("state":"cancelled")"));
  EXPECT_EQ(claim(), "");
  EXPECT_THAT(store_->cancelling(), ElementsAre());
  const StoredJob marked = store_->cancel(running).value();
  EXPECT_EQ(marked.state, JobState::kRunning);
  EXPECT_TRUE(marked.cancelling);
  EXPECT_THAT(store_->cancelling(), ElementsAre(running));
  EXPECT_TRUE(end(running, JobState::kQueued));  // given back, it does not run again
  EXPECT_EQ(state(running), JobState::kCancelled);
  EXPECT_THAT(store_->cancelling(), ElementsAre());
  const std::string done = submit();
  claim();
  EXPECT_TRUE(end(done));
  const int64_t events = store_->last_sequence();
  EXPECT_EQ(store_->cancel(done)->state, JobState::kDone);
  EXPECT_FALSE(store_->find(done)->cancelling);
  EXPECT_EQ(store_->last_sequence(), events);
}

TEST_P(StoreTest, JobsAreGivenBackAndResumed) {
  const std::string id = submit(), other = submit();
  for (int i = 0; i < 5; ++i) {  // more often than jobs may be lost
    ASSERT_EQ(claim(), id);
    JobChange change;
    change.job = id;
    change.progress = "{\"step\":" + std::to_string(i) + "}";
    change.state = JobState::kQueued;
    change.resume = true;
    EXPECT_THAT(store_->apply({&change, 1}), ElementsAre());
    EXPECT_EQ(state(id), JobState::kQueued);
    EXPECT_EQ(store_->find(id)->started, 0);
  }
  EXPECT_FALSE(store_->resume(id));  // it waits already
  const StoredJob again = store_->claim({{"generate"}, {}, {}}).value();
  EXPECT_TRUE(again.resume);
  EXPECT_EQ(again.progress, "{\"step\":4}");
  EXPECT_FALSE(store_->resume(id));
  EXPECT_TRUE(end(id, JobState::kFailed));
  EXPECT_TRUE(store_->resume(id));
  const StoredJob resumed = store_->find(id).value();
  EXPECT_EQ(resumed.state, JobState::kQueued);
  EXPECT_EQ(resumed.attempts, 0);
  EXPECT_EQ(resumed.finished, 0);
  EXPECT_EQ(claim(), id);
  EXPECT_EQ(claim(), other);
  EXPECT_TRUE(end(other));
  EXPECT_FALSE(store_->resume(other));  // nothing was left to go on from
  EXPECT_FALSE(store_->resume("none"));
}

TEST_P(StoreTest, OnlyTheHolderOfAJobChangesIt) {
  const std::string id = submit(), waiting = submit();
  ASSERT_EQ(claim(), id);
  std::vector<JobChange> changes(5);
  changes[0].job = waiting;
  changes[0].state = JobState::kDone;
  changes[0].files = {{"1.png", "image/png", "{}", "x", "", 0}};
  changes[1].job = id;
  changes[1].files = {{"1.png", "image/png", "{}", "first", "", 0}};
  changes[2].job = "none";
  changes[2].events = {{"progress", "{}"}};
  changes[3].job = id;
  changes[3].files = {{"2.png", "image/png", "{}", "", "", 0},
                      {"1.png", "image/webp", "{}", "second", "", 0}};
  changes[3].state = JobState::kDone;
  changes[4].job = id;
  changes[4].progress = "too late";
  EXPECT_THAT(store_->apply(changes), ElementsAre(waiting, "none", id));
  EXPECT_EQ(state(waiting), JobState::kQueued);
  EXPECT_EQ(store_->files(waiting).size(), 0u);
  EXPECT_EQ(store_->find(id)->progress, "");
  const auto files = store_->files(id);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "1.png");
  EXPECT_EQ(files[0].type, "image/webp");
  EXPECT_EQ(store_->file(id, "1.png")->bytes, "second");
  EXPECT_EQ(store_->file(id, "2.png")->bytes, "");
  EXPECT_FALSE(end(id, JobState::kFailed));
  EXPECT_EQ(state(id), JobState::kDone);
  EXPECT_NE(test::error_of([&] { end(waiting, JobState::kRunning); }), "(no error)");
  EXPECT_THAT(store_->apply({}), ElementsAre());
}

TEST_P(StoreTest, EndedJobsAreRemovedWithAllThatIsTheirs) {
  const std::string id = submit(), kept = submit();
  EXPECT_FALSE(store_->remove(id));
  claim();
  EXPECT_FALSE(store_->remove(id));
  JobChange change;
  change.job = id;
  change.files = {{"1.png", "image/png", "{}", "x", "", 0}};
  change.state = JobState::kDone;
  store_->apply({&change, 1});
  const int64_t last = store_->last_sequence();
  EXPECT_EQ(all_events().back().sequence, last);
  EXPECT_TRUE(store_->remove(id));
  EXPECT_FALSE(store_->remove(id));
  EXPECT_FALSE(store_->find(id));
  EXPECT_FALSE(store_->file(id, "1.png"));
  EXPECT_EQ(all_events().size(), 1u);
  EXPECT_EQ(store_->last_sequence(), last);  // numbers are not used again
  store_->cancel(kept);
  EXPECT_EQ(all_events().back().sequence, last + 1);
}

TEST_P(StoreTest, ListsGoBackPageByPage) {
  std::vector<std::string> ids;
  for (int i = 0; i < 25; ++i) ids.push_back(submit("", 0, i % 5 == 0 ? "train" : "generate"));
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  std::reverse(ids.begin(), ids.end());
  std::vector<std::string> seen;
  JobFilter filter;
  filter.limit = 10;
  for (int page = 0; page < 4; ++page) {
    const auto jobs = ids_of(store_->list(filter));
    EXPECT_EQ(jobs.size(), page < 2 ? 10u : page == 2 ? 5u : 0u);
    seen.insert(seen.end(), jobs.begin(), jobs.end());
    filter.before = seen.back();
    if (page == 1) {  // a page goes on also where the job has gone
      store_->cancel(filter.before);
      store_->remove(filter.before);
    }
  }
  EXPECT_EQ(seen, ids);
  EXPECT_EQ(ids_of(store_->list({"train", std::nullopt, ids[9], 2})),
            (std::vector<std::string>{ids[14], ids[24]}));  // 19 was removed
  ASSERT_EQ(claim({"train"}), ids[24]);
  EXPECT_THAT(ids_of(store_->list({"", JobState::kRunning, "", 50})), ElementsAre(ids[24]));
  EXPECT_THAT(ids_of(store_->list({"generate", JobState::kRunning, "", 50})), ElementsAre());
  EXPECT_EQ(store_->list({"train", JobState::kQueued, ids[0], 50}).size(), 3u);
  EXPECT_THAT(store_->list({"", std::nullopt, "", 0}), ElementsAre());
}

TEST_P(StoreTest, EventsAreReadAfterASequence) {
  EXPECT_EQ(store_->last_sequence(), 0);
  const std::string a = submit(), b = submit();
  claim();
  const auto all = all_events();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(store_->events(all[0].sequence, "", 1)[0].job, b);
  EXPECT_EQ(store_->events(all[0].sequence, a, 10)[0].sequence, all[2].sequence);
  EXPECT_THAT(store_->events(all[2].sequence, "", 10), ElementsAre());
  EXPECT_THAT(store_->events(0, "", 0), ElementsAre());
  die();
  EXPECT_GT(store_->last_sequence(), all[2].sequence);
}

// A training of weeks is as long as a chart.
TEST_P(StoreTest, EventsThatRepeatThemselvesAreThinnedOut) {
  const std::string id = submit();
  claim();
  constexpr int kTold = 6000, kAtOnce = 100;
  for (int begin = 0; begin < kTold; begin += kAtOnce) {
    JobChange change;
    change.job = id;
    for (int i = begin; i < begin + kAtOnce; ++i) {
      change.events.emplace_back("progress", std::to_string(i));
      if (i % 1000 == 0) change.events.emplace_back("warning", std::to_string(i));
      if (i % 4 == 0) change.events.emplace_back("held_out", std::to_string(i));
    }
    ASSERT_THAT(store_->apply({&change, 1}), ElementsAre());
  }
  const std::string other = submit();
  end(id);
  std::map<std::string, std::vector<int>> told;
  int64_t sequence = 0;
  for (const StoredEvent& event : all_events(id)) {
    EXPECT_GT(event.sequence, sequence);
    sequence = event.sequence;
    if (event.type != "state") told[event.type].push_back(std::stoi(event.data));
  }
  EXPECT_EQ(all_events(other).size(), 1u);
  EXPECT_EQ(told["warning"].size(), 6u) << "each is another";
  EXPECT_LT(told["progress"].size() + told["held_out"].size(), 4500u);
  for (const std::string type : {"progress", "held_out"}) {
    const std::vector<int>& points = told[type];
    const int stride = type == "progress" ? 1 : 4;
    ASSERT_GT(points.size(), 520u) << type;
    EXPECT_EQ(points.front(), 0) << "the first stays";
    EXPECT_EQ(points.back(), kTold - stride);
    EXPECT_EQ(points[points.size() - 500], kTold - 500 * stride) << "and all of the latest";
    int widest = 0;
    for (size_t i = 1; i < points.size(); ++i) widest = std::max(widest, points[i] - points[i - 1]);
    EXPECT_LT(widest, kTold / 4) << type << ": nowhere is there a hole";
  }
}

TEST_P(StoreTest, KeysHaveNames) {
  store_->add_key({"ann's", "hash 1", 5});
  store_->add_key({"bob", "hash 2", 0});
  EXPECT_THAT(test::error_of([&] { store_->add_key({"ann's", "hash 3", 6}); }),
              HasSubstr("ann's: there is a key of this name already"));
  die();
  const auto keys = store_->keys();
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].name, "ann's");
  EXPECT_EQ(keys[0].hash, "hash 1");
  EXPECT_EQ(keys[0].created, 5);
  EXPECT_NEAR(keys[1].created, seconds_now(), 60);
  EXPECT_TRUE(store_->remove_key("ann's"));
  EXPECT_FALSE(store_->remove_key("ann's"));
  EXPECT_EQ(store_->keys().size(), 1u);
}

TEST_P(StoreTest, ChangesAreToldOutsideOfLocks) {
  std::atomic<int> told = 0;
  store_->on_change([&] {
    store_->counts();  // would wait for ever for a lock that the caller holds
    ++told;
  });
  const auto is_told = [&](const auto& action) {
    const int before = told;
    action();
    return told > before;
  };
  std::string id;
  EXPECT_TRUE(is_told([&] { id = submit(); }));
  EXPECT_TRUE(is_told([&] { claim(); }));
  EXPECT_TRUE(is_told([&] { store_->cancel(id); }));
  EXPECT_TRUE(is_told([&] { end(id); }));
  EXPECT_TRUE(is_told([&] { store_->remove(id); }));
  store_->on_change(nullptr);
  submit();
}

// What is told may end right after: nobody is in the middle of a call by then.
TEST_P(StoreTest, NoCallIsUnderWayOnceItIsNotWanted) {
  std::atomic<bool> inside = false, leave = false, ended = false;
  store_->on_change([&] {
    inside = true;
    while (!leave) std::this_thread::yield();
    inside = false;
  });
  std::thread changes([&] { submit(); });
  while (!inside) std::this_thread::yield();
  std::thread ends([&] {
    store_->on_change(nullptr);
    EXPECT_FALSE(inside);
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(ended);
  leave = true;
  ends.join();
  changes.join();
}

// Threads submit, claim and end at once while another one reads the events as they come.
TEST_P(StoreTest, ThreadsShareIt) {
  constexpr int kThreads = 4, kJobs = 25;
  std::atomic<int> ended = 0, failures = 0;
  const auto work = [&](int number) {
    for (int i = 0; i < kJobs; ++i) submit("owner" + std::to_string(number));
    for (int tries = 0; tries < 10000 && ended < kThreads * kJobs; ++tries) {
      const std::string id = claim();
      if (id.empty()) continue;
      if (end(id)) ++ended;
      if (end(id)) ++failures;
    }
  };
  std::vector<int64_t> seen;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (int tries = 0; tries < 100000 && seen.size() < 3 * kThreads * kJobs; ++tries) {
    for (const auto& event : store_->events(seen.empty() ? 0 : seen.back(), "", 1000)) {
      seen.push_back(event.sequence);
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, kThreads * kJobs);
  EXPECT_EQ(failures, 0);
  std::vector<int64_t> all;
  for (const StoredEvent& event : all_events()) all.push_back(event.sequence);
  EXPECT_EQ(seen, all);
  EXPECT_EQ(all.size(), 3u * kThreads * kJobs);
  EXPECT_EQ(store_->counts().queued + store_->counts().running, 0);
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreTest, testing::Values("sqlite", "postgresql"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace halftone
