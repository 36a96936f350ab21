// How pictures of several models share a worker.
#include "halftone/server/generate_worker.h"

#include <chrono>
#include <set>
#include <thread>

#include "halftone/server/requests.h"
#include "tests/server/api_fixture.h"

namespace halftone {
namespace {

using nlohmann::json;

// Holds up the loading of a model until it is opened.
class Gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return open_; });
  }
  void open() {
    {
      const std::scoped_lock lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

class GenerateWorkerTest : public testing::Test {
 protected:
  GenerateWorkerTest() {
    GenerateWorkerOptions options;
    options.progress_every = 0;
    options.before_load = [this](const std::string& key) {
      loads_.insert(key);
      if (key == "emoji|fp8") gate_.wait();
    };
    worker_ = std::make_unique<GenerateWorker>(
        GenerateWorker::With{engine_, shelf_, *store_, metrics_, previews_, log_}, options);
  }
  ~GenerateWorkerTest() override { gate_.open(); }

  std::string submit(const std::string& precision, int steps) {
    const json body = {{"prompt", "a cat"}, {"size", "32x32"}, {"steps", steps},
                       {"previews", false}, {"seed", 1},       {"precision", precision}};
    const NewJob job = generate_job(schemas_, limits_, shelf_, body);
    const std::string id = store_->submit(job, 100).value().id;
    worker_->wake();
    return id;
  }
  StoredJob job(const std::string& id) { return store_->find(id).value(); }
  bool wait_for(const std::function<bool()>& reached) {
    for (int i = 0; i < 6000; ++i) {
      if (reached()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  bool wait_for(const std::string& id, JobState state) {
    return wait_for([&] { return job(id).state == state; });
  }
  json progress(const std::string& id) {
    const json told = json::parse(job(id).progress, nullptr, false);
    return told.is_object() ? told : json::object();
  }

  test::TempDir dir_;
  Engine engine_;
  RequestLimits limits_{.most_steps = 1000};
  RequestSchemas schemas_{limits_};
  Shelf shelf_{engine_, {.models = {test::kEmoji}}};
  std::unique_ptr<Store> store_ = open_sqlite_store((dir_ / "jobs.db").string());
  Metrics metrics_;
  Previews previews_;
  Log log_{{.file = (dir_ / "log").string()}};
  Gate gate_;
  std::set<std::string> loads_;  // one at a time
  std::unique_ptr<GenerateWorker> worker_;
};

TEST_F(GenerateWorkerTest, OthersGoOnWhileAModelIsLoaded) {
  const std::string endless = submit("auto", 1000);
  ASSERT_TRUE(wait_for([&] { return progress(endless).value("done", 0) > 0; }));
  const std::string loads = submit("fp8", 1), also = submit("fp8", 2);
  ASSERT_TRUE(wait_for([&] { return progress(also).value("stage", "") == "loading"; }));
  const int before = progress(endless).value("done", 0);
  EXPECT_TRUE(wait_for([&] { return progress(endless).value("done", 0) > before + 5; }));
  const std::string other = submit("mxfp8", 1), same = submit("auto", 2);
  EXPECT_TRUE(wait_for(same, JobState::kDone)) << "a model that is there is used";
  EXPECT_EQ(job(other).state, JobState::kQueued) << "one at a time is loaded";
  EXPECT_EQ(job(loads).state, JobState::kRunning);
  EXPECT_EQ(worker_->loaded(), std::vector<std::string>{"emoji|auto"});
  gate_.open();
  for (const std::string& id : {loads, also, other}) EXPECT_TRUE(wait_for(id, JobState::kDone));
  EXPECT_EQ(worker_->loaded().size(), 3u);
  EXPECT_EQ(loads_.size(), 3u);
}

TEST_F(GenerateWorkerTest, AJobMayEndBeforeItsModelIsThere) {
  const std::string cancelled = submit("fp8", 1);
  ASSERT_TRUE(wait_for([&] { return progress(cancelled).value("stage", "") == "loading"; }));
  store_->cancel(cancelled);
  worker_->cancel({cancelled});
  EXPECT_TRUE(wait_for(cancelled, JobState::kCancelled));
  const std::string given_back = submit("fp8", 1);
  ASSERT_TRUE(wait_for(given_back, JobState::kRunning));
  worker_->stop(0);
  EXPECT_EQ(job(given_back).state, JobState::kQueued);
}

TEST_F(GenerateWorkerTest, AModelThatHasGoneFailsItsJobs) {
  NewJob gone;
  gone.kind = "generate";
  gone.model = "gone|auto";
  json request = json::parse(job(submit("auto", 1)).request);
  request["model"] = "gone";
  gone.request = request.dump();
  const std::string id = store_->submit(gone, 100).value().id;
  worker_->wake();
  EXPECT_TRUE(wait_for(id, JobState::kFailed));
  EXPECT_EQ(json::parse(job(id).error)["field"], "model");
}

}  // namespace
}  // namespace halftone
