// Who may use a server, and what stays when it ends.
#include "halftone/server/auth.h"
#include "halftone/server/store.h"
#include "tests/server/api_fixture.h"
#include "tests/support/errors.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::ApiTest;
using test::endless;
using test::HttpReply;
using test::IsError;
using testing::HasSubstr;

class ApiKeys : public ApiTest {
 protected:
  void SetUp() override {
    me_ = add("me");
    you_ = add("you");
    start();
  }
  // As the program for keys does, beside a server or without one.
  std::string add(const std::string& name) const {
    ServerOptions options;
    options.data = dir_ / "data";
    const std::string key = make_key();
    open_store(options, StoreUse::kBeside)->add_key({name, hash_of_key(key), 0});
    return key;
  }
  static test::HttpHeaders bearer(const std::string& key) {
    return {{"Authorization", "Bearer " + key}};
  }

  std::string me_, you_;
};

TEST_F(ApiKeys, NothingWithoutOne) {
  for (const char* open : {"/", "/healthz", "/readyz", "/openapi.json"}) {
    EXPECT_EQ(get(open).status, 200) << open;
  }
  const json document = get("/openapi.json").json();
  int closed = 0;
  for (const auto& [path, methods] : document["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      if (operation.contains("security")) continue;  // of none: open
      ++closed;
      std::string name = method;
      for (char& c : name) c = static_cast<char>(std::toupper(c));
      EXPECT_EQ(client().send(name, path).status, 401) << name << " " << path;
    }
  }
  EXPECT_GT(closed, 30);
  EXPECT_EQ(get("/api/info").header("www-authenticate"), "Bearer");
  for (const std::string& wrong : {std::string(), std::string("x"), me_.substr(1), me_ + "0"}) {
    EXPECT_EQ(get("/api/info", bearer(wrong)).status, 401) << wrong;
  }
  EXPECT_EQ(get("/api/info", {{"Authorization", "Basic " + me_}}).status, 401);
  EXPECT_EQ(get("/api/info?key=" + me_).status, 401) << "keys in URLs end up in logs";
  EXPECT_EQ(get("/api/info", bearer(me_)).status, 200);
}

TEST_F(ApiKeys, AreGivenAndTakenBackWhileTheServerRuns) {
  const HttpReply login = post("/api/login", {{"key", you_}});
  const std::string set = login.header("set-cookie"), cookie = set.substr(0, set.find(';'));
  EXPECT_EQ(get("/api/info", bearer(add("third"))).status, 200);
  ServerOptions options;
  options.data = dir_ / "data";
  EXPECT_TRUE(open_store(options, StoreUse::kBeside)->remove_key("you"));
  EXPECT_EQ(get("/api/info", bearer(you_)).status, 401);
  EXPECT_EQ(get("/api/info", {{"Cookie", cookie}}).status, 401) << "its sessions end with it";
  EXPECT_EQ(get("/api/info", bearer(me_)).status, 200);
}

TEST_F(ApiKeys, JobsHaveOwners) {
  const json body = {{"prompt", "x"}, {"size", "32x32"}, {"steps", 1}};
  EXPECT_EQ(post("/api/generate", body, bearer(me_)).json()["owner"], "me");
  EXPECT_EQ(post("/api/generate", body, bearer(you_)).json()["owner"], "you");
}

TEST_F(ApiKeys, BrowsersGetACookie) {
  EXPECT_THAT(post("/api/login", {{"key", "x"}}), IsError(401, "unauthorized", "key"));
  const HttpReply reply = post("/api/login", {{"key", me_}});
  EXPECT_EQ(reply.status, 204);
  const std::string set = reply.header("set-cookie");
  for (const char* part : {"HttpOnly", "SameSite=Strict", "Path=/"})
    EXPECT_THAT(set, HasSubstr(part));
  EXPECT_THAT(set, testing::Not(HasSubstr(me_)));
  const std::string cookie = set.substr(0, set.find(';'));
  EXPECT_EQ(get("/api/info", {{"Cookie", cookie}}).status, 200);
  EXPECT_EQ(get("/api/info", {{"Cookie", "a=b; " + cookie + "; c=d"}}).status, 200);
  EXPECT_EQ(get("/api/info", {{"Cookie", cookie + "0"}}).status, 401);
  EXPECT_EQ(post("/api/datasets", {{"name", "x"}},
                 {{"Cookie", cookie}, {"Origin", "http://evil.example"}})
                .status,
            403);
  EXPECT_EQ(post("/api/logout", nullptr, {{"Cookie", cookie}}).status, 204);
  EXPECT_EQ(get("/api/info", {{"Cookie", cookie}}).status, 401);
}

TEST_F(ApiKeys, OtherMachinesNeedOne) {
  EXPECT_NO_THROW(start([](ServerOptions& options) { options.host = "0.0.0.0"; }));
  EXPECT_EQ(get("/api/info").status, 401);
  start([&](ServerOptions& options) {
    options.data = dir_ / "other";
    options.host = "0.0.0.0";
    options.open = true;
  });
  EXPECT_EQ(get("/api/info").status, 200);
  const auto without = [&] {
    start([&](ServerOptions& options) {
      options.data = dir_ / "third";
      options.host = "0.0.0.0";
    });
  };
  EXPECT_THAT(test::error_of(without), HasSubstr("host"));
}

class ApiRestart : public ApiTest {};

TEST_F(ApiRestart, JobsAreThereAgainAndGoOn) {
  const auto one_row = [](ServerOptions& options) { options.most_rows = 1; };
  start(one_row);
  const std::string done = submit_picture();
  const std::string before = get("/api/jobs/" + ended(done)["id"].get<std::string>()).body;
  const std::string running = submit_picture({{"steps", 40}, {"size", "128x128"}});
  ASSERT_FALSE(wait_for(running, "progress", 2).is_null());
  std::vector<std::string> queued;
  for (int i = 0; i < 3; ++i) queued.push_back(submit_picture({{"seed", i}}));
  const std::string bytes = get("/api/jobs/" + done + "/files/1.png").body;
  stop();
  start(one_row);
  EXPECT_EQ(get("/api/jobs/" + done).body, before);
  EXPECT_EQ(get("/api/jobs/" + done + "/files/1.png").body, bytes);
  queued.push_back(running);
  for (const std::string& id : queued) {
    const json job = ended(id);
    EXPECT_EQ(job["state"], "done") << job;
    EXPECT_EQ(job["results"].size(), 1u) << "made once";
    int results = 0;
    for (const test::SseEvent& event : events(id)) results += event.type == "result" ? 1 : 0;
    EXPECT_EQ(results, 1);
  }
}

TEST_F(ApiRestart, TrainingGoesOnFromItsCheckpoint) {
  start();
  make_dataset("set");
  const std::string id = submit("/api/train", test::small_training("style", 60));
  ASSERT_FALSE(wait_for(id, "checkpoint", 2).is_null());
  stop();
  start();
  const json job = ended(id);
  EXPECT_EQ(job["state"], "done") << job;
  std::map<int, int> steps;
  std::vector<std::string> states;
  for (const test::SseEvent& event : events(id)) {
    if (event.type == "state") states.push_back(event.data["state"]);
    if (event.data.value("stage", "") == "training") ++steps[event.data["done"].get<int>()];
  }
  EXPECT_THAT(states, testing::ElementsAre("queued", "running", "queued", "running", "done"));
  EXPECT_EQ(steps.size(), 60u);
  int twice = 0;
  for (const auto& [step, times] : steps) twice += times - 1;
  EXPECT_LE(twice, 2) << "steps were done again";
}

TEST_F(ApiRestart, OneServerForAFolder) {
  start();
  ServerOptions options;
  options.port = 0;
  options.data = dir_ / "data";
  options.log.file = (dir_ / "log2").string();
  EXPECT_THAT(test::error_of([&] { Server second(engine_, options); }),
              HasSubstr("in use by another server"));
  options.data = dir_ / "other";
  options.port = server_->port();
  EXPECT_THAT(test::error_of([&] { Server second(engine_, options); }), HasSubstr("port"));
  EXPECT_EQ(get("/healthz").status, 200);
}

}  // namespace
}  // namespace halftone
