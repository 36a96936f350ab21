// Servers that share a queue in PostgreSQL, as processes of their own: one of them is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <random>
#include <thread>

#include "halftone/engine/generate.h"
#include "halftone/engine/picture_text.h"
#include "halftone/io/png.h"
#include "tests/server/server_process.h"
#include "tests/server/store_fixture.h"
#include "tests/support/silent.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::ServerProcess;
using test::TempDir;
namespace fs = std::filesystem;

class SeveralServers : public testing::Test {
 protected:
  static constexpr double kLease = 2;

  void SetUp() override {
    if (test::shared_cluster() == nullptr) GTEST_SKIP() << test::kNoPostgres;
    url_ = test::new_postgres_url();
    store_ = open_postgres_store(url_, kLease);
  }

  // Each with a data folder of its own.
  void start(int count, const std::vector<std::string>& more = {}) {
    for (int i = 0; i < count; ++i) {
      std::vector<std::string> arguments = {"--store",     url_, "--lease", "2", "--threads", "1",
                                            "--max-batch", "2",  "--grace", "0"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      servers_.push_back(
          std::make_unique<ServerProcess>(dir_ / ("server" + std::to_string(i)), arguments));
    }
  }

  // Those that a server has begun and not ended.
  int running_on(const ServerProcess& server) {
    const std::string process = "-" + std::to_string(server.pid()) + "-";
    int count = 0;
    for (const StoredJob& job : store_->list({"", JobState::kRunning, "", 100})) {
      count += job.server.find(process) != std::string::npos ? 1 : 0;
    }
    return count;
  }
  bool wait_for(const std::function<bool()>& reached) {
    for (int i = 0; i < 4000; ++i) {
      if (reached()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  int count(const std::string& job, const std::string& state) {
    int found = 0;
    for (const StoredEvent& event : store_->events(0, job, 100000)) {
      if (event.type != "state") continue;
      found += json::parse(event.data).value("state", "") == state ? 1 : 0;
    }
    return found;
  }

  TempDir dir_;
  std::string url_;
  std::unique_ptr<Store> store_;  // looks on; takes nothing over
  std::vector<std::unique_ptr<ServerProcess>> servers_;
};

// As the engine makes them, one after the other.
std::vector<std::string> one_by_one(const std::vector<json>& asked) {
  Engine engine;
  LoadedModel loaded =
      engine.load({.path = HALFTONE_MODELS "/emoji", .device = "cpu", .threads = 1});
  std::vector<std::string> pictures;
  for (const json& body : asked) {
    GenerateRequest request = loaded.request(body["prompt"]);
    request.width = request.height = 64;
    request.steps = body["steps"];
    request.seed = body["seed"];
    const GenerateResult made = generate(*loaded.pipeline, request, test::silent);
    pictures.push_back(
        encode_png(made.images.at(0), picture_text(loaded, request, loaded.model->hash(), 0)));
  }
  return pictures;
}

TEST_F(SeveralServers, EachJobIsDoneOnceThoughOneServerIsKilled) {
  start(3);
  std::vector<json> asked;
  std::vector<std::string> ids;
  constexpr int kJobs = 9;
  for (int i = 0; i < kJobs; ++i) {
    asked.push_back({{"prompt", i % 2 == 0 ? "a red heart" : "a cat"},
                     {"size", "64x64"},
                     {"steps", 10},
                     {"seed", i},
                     {"previews", false}});
    ids.push_back(servers_[static_cast<size_t>(i) % 3]->submit("/api/generate", asked.back()));
    ASSERT_FALSE(ids.back().empty());
  }
  // Any of those that are in the middle of something, and after some were done.
  std::mt19937 random(20261118);
  size_t victim = 0;
  ASSERT_TRUE(wait_for([&] {
    victim = random() % 3;
    return store_->list({"", JobState::kDone, "", 100}).size() >= 2 &&
           running_on(*servers_[victim]) > 0;
  }));
  ::kill(servers_[victim]->pid(), SIGSTOP);                     // so that what it holds can be told
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // what it has sent is done
  std::vector<std::string> held;
  const std::string process = "-" + std::to_string(servers_[victim]->pid()) + "-";
  for (const StoredJob& job : store_->list({"", JobState::kRunning, "", 100})) {
    if (job.server.find(process) != std::string::npos) held.push_back(job.id);
  }
  servers_[victim]->end(SIGKILL);
  servers_.erase(servers_.begin() + static_cast<std::ptrdiff_t>(victim));

  EXPECT_TRUE(wait_for([&] {
    const Store::Counts now = store_->counts();
    return now.queued == 0 && now.running == 0;
  }));
  const std::vector<std::string> expected = one_by_one(asked);
  for (size_t i = 0; i < ids.size(); ++i) {
    const StoredJob job = store_->find(ids[i]).value();
    EXPECT_EQ(job.state, JobState::kDone) << ids[i] << " " << job.error;
    EXPECT_EQ(count(ids[i], "done"), 1) << ids[i];
    const bool was_held = std::find(held.begin(), held.end(), ids[i]) != held.end();
    // (A server that is held up for longer than its lease loses jobs as well.)
    EXPECT_GE(count(ids[i], "running"), was_held ? 2 : 1) << ids[i];
    EXPECT_EQ(store_->files(ids[i]).size(), 1u);
    for (const auto& server : servers_) {
      const test::HttpReply file = server->get("/api/jobs/" + ids[i] + "/files/1.png");
      EXPECT_EQ(file.status, 200);
      EXPECT_TRUE(file.body == expected[i]) << asked[i];
    }
  }
  EXPECT_GE(held.size(), 1u) << "the kill has interrupted something";
}

TEST_F(SeveralServers, AnAdapterTrainedOnOneIsUsedOnAll) {
  fs::create_directories(dir_ / "pictures/set");
  for (int i = 0; i < 2; ++i) {
    const auto shade = static_cast<uint8_t>(60 + 90 * i);
    const std::string name = "set/" + std::to_string(i);
    test::write_file(
        dir_ / "pictures" / (name + ".png"),
        encode_png(PngImage{32, 32, std::vector<uint8_t>(size_t{32} * 32 * 3, shade), {}}));
    test::write_file(dir_ / "pictures" / (name + ".txt"), "a square");
  }
  start(2, {"--datasets", (dir_ / "pictures").string()});
  const std::string id = servers_[0]->submit("/api/train", {{"dataset", "set"},
                                                            {"name", "style"},
                                                            {"steps", 2},
                                                            {"batch", 1},
                                                            {"resolution", 32},
                                                            {"rank", 2},
                                                            {"lr", 0.01},
                                                            {"compile", "off"}});
  const json trained = servers_[1]->ended(id);
  ASSERT_EQ(trained["state"], "done") << trained;
  size_t results = 0;
  for (const json& result : trained["results"]) {
    const test::HttpReply one = servers_[0]->get(result["url"]),
                          two = servers_[1]->get(result["url"]);
    EXPECT_EQ(one.status, 200) << result;
    EXPECT_EQ(one.body.size(), result["bytes"].get<size_t>());
    EXPECT_TRUE(one.body == two.body) << result;
    EXPECT_EQ(one.header("content-type"), two.header("content-type"));
    ++results;
  }
  EXPECT_GE(results, 2u) << "the adapter, and a page";
  // Whichever server has not trained it fetches it when it is first named.
  std::string first;
  for (int i = 0; i < 4; ++i) {
    const auto& server = servers_[static_cast<size_t>(i) % 2];
    const json job =
        server->ended(server->submit("/api/generate", {{"prompt", "a square"},
                                                       {"size", "32x32"},
                                                       {"steps", 2},
                                                       {"seed", 1},
                                                       {"loras", {{{"name", "style"}}}}}));
    ASSERT_EQ(job["state"], "done") << job;
    const std::string picture = server->get(job["results"][0]["url"]).body;
    if (first.empty()) first = picture;
    EXPECT_TRUE(picture == first);
  }
  for (const auto& server : servers_) {
    EXPECT_TRUE(fs::exists(server->data() / "loras/style.safetensors"));
  }
  EXPECT_THAT(
      servers_[0]->post("/api/generate", {{"prompt", "x"}, {"loras", {{{"name", "none"}}}}}).status,
      400);
}

// What is too large for the database, or lies in a folder that is gone, is missed with a reason.
TEST_F(SeveralServers, AFileOfAnotherServerIsNamed) {
  NewJob job;
  job.kind = "quantize";
  job.request = "{}";
  const std::string id = store_->submit(job, 10).value().id;
  ASSERT_TRUE(store_->claim({{"quantize"}, {}, {}}));
  JobChange end;
  end.job = id;
  end.files = {{"model.safetensors", "application/octet-stream", R"({"media":"model"})", "",
                "runs/x/model.safetensors", int64_t{3} << 30}};
  end.state = JobState::kDone;
  ASSERT_TRUE(store_->apply({&end, 1}).empty());
  start(1);
  const test::HttpReply reply = servers_[0]->get("/api/jobs/" + id + "/files/model.safetensors");
  EXPECT_EQ(reply.status, 404);
  EXPECT_THAT(reply.body, testing::HasSubstr("too large for the database (3.00 GiB)"));
}

}  // namespace
}  // namespace halftone
