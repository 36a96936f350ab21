// Jobs: the pictures they make, and all that can be done with them.
#include <set>
#include <thread>

#include "halftone/engine/generate.h"
#include "halftone/engine/picture_text.h"
#include "halftone/io/png.h"
#include "halftone/server/previews.h"
#include "tests/server/api_fixture.h"
#include "tests/support/silent.h"
#include "tests/support/tiny_folder.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::ApiTest;
using test::endless;
using test::HttpReply;
using test::IsError;
using test::SseEvent;
using testing::ElementsAre;

class ApiJobs : public ApiTest {
 protected:
  void SetUp() override { start(); }
};

// As the engine makes them, one after the other.
std::vector<std::string> serially(Engine& engine, const json& asked, const std::string& lora) {
  LoadedModel loaded = engine.load({.path = test::kEmoji});
  GenerateRequest request = loaded.request(asked["prompt"]);
  request.width = asked["width"];
  request.height = asked["height"];
  request.steps = asked["steps"];
  request.seed = asked["seed"];
  request.count = asked.value("count", 1);
  request.guidance = asked.value("guidance", request.guidance);
  request.cache = asked.value("cache", 0.0f);
  if (asked.contains("loras")) {
    request.adapters = {{loaded.model->load_adapter(lora), asked["loras"][0]["strength"]}};
  }
  std::vector<std::string> pictures;
  generate(*loaded.pipeline, request, test::silent, [&](const GeneratedPicture& made) {
    const PngText text = picture_text(loaded, request, loaded.model->hash(), made.index);
    pictures.push_back(encode_png(made.image, told_picture_text(text, request, made.reused[0])));
  });
  return pictures;
}

TEST_F(ApiJobs, PicturesOfABatchAreThoseOfARunAlone) {
  make_dataset("set");
  ASSERT_EQ(ended(submit("/api/train", test::small_training("style", 4)))["state"], "done");
  const std::string lora = (dir_ / "data/loras/style.safetensors").string();
  const auto picture = [](const char* prompt, int size, int steps, int seed) -> json {
    return {
        {"prompt", prompt}, {"width", size}, {"height", size}, {"steps", steps}, {"seed", seed}};
  };
  std::vector<json> asked = {picture("a cat", 64, 6, 1),  picture("a red square", 64, 3, 2),
                             picture("", 64, 5, 3),       picture("the moon", 64, 6, 4),
                             picture("a cat", 64, 4, 1),  picture("a dog", 48, 4, 5),
                             picture("a fish", 64, 9, 6), picture("a bird", 64, 7, 7)};
  asked[0]["count"] = 3;
  asked[3]["loras"] = {{{"name", "style"}, {"strength", 0.75}}};
  asked[4]["loras"] = {{{"name", "style"}, {"strength", -1}}};
  for (size_t i : {6, 7}) asked[i]["cache"] = 0.3;
  std::vector<std::string> ids;
  for (const json& body : asked) ids.push_back(submit("/api/generate", body));
  for (size_t i = 0; i < asked.size(); ++i) {
    const json job = ended(ids[i]);
    ASSERT_EQ(job["state"], "done") << job;
    const std::vector<std::string> expected = serially(engine_, asked[i], lora);
    ASSERT_EQ(job["results"].size(), expected.size());
    for (size_t k = 0; k < expected.size(); ++k) {
      const json& result = job["results"][k];
      EXPECT_EQ(result["seed"], asked[i]["seed"].get<size_t>() + k);
      EXPECT_EQ(result["width"], asked[i]["width"]);
      EXPECT_EQ(!result.value("reused_steps", json::array()).empty(), asked[i].contains("cache"));
      const HttpReply file = get(result["url"]);
      EXPECT_EQ(file.header("content-type"), "image/png");
      EXPECT_EQ(file.body.size(), result["bytes"].get<size_t>());
      EXPECT_TRUE(file.body == expected[k]) << asked[i] << " picture " << k;
    }
  }
  // The adapter is no decoration: without it the picture is another one.
  json plain = asked[3];
  plain.erase("loras");
  EXPECT_FALSE(get("/api/jobs/" + ids[3] + "/files/1.png").body ==
               serially(engine_, plain, "").front());
  const std::string metrics = get("/metrics").body;
  const auto number = [&](const std::string& name) {
    return std::atof(metrics.c_str() + metrics.find("\n" + name + " ") + name.size() + 2);
  };
  EXPECT_GT(number("halftone_rows_total"), number("halftone_steps_total")) << "none was batched";
}

// SDXL, which is told of sizes, and for which no negative prompt is another than an empty one.
TEST_F(ApiJobs, SizesAndEmptyNegativePromptsAreTold) {
  const std::string folder = dir_ / "tiny";
  test::write_tiny_folder(folder, "sdxl", "base");
  start([&](ServerOptions& options) { options.models = {folder}; });
  EXPECT_EQ(get("/api/models").json()["models"][0]["defaults"]["original_size"], "");
  const LoadedModel loaded = engine_.load({.path = folder});
  GenerateRequest request = loaded.request("a cat");
  request.width = request.height = 16;
  request.steps = 1;
  request.seed = 7;
  std::set<std::string> different;
  const auto expect_alike = [&](const json& more) {
    json body = {{"size", "16x16"}, {"steps", 1}};
    body.update(more);
    const json job = ended(submit_picture(body));
    ASSERT_EQ(job["state"], "done") << job;
    const std::string png = get(job["results"][0]["url"].get<std::string>()).body;
    const Tensor image = generate(*loaded.pipeline, request, test::silent).images[0];
    EXPECT_EQ(png, encode_png(image, picture_text(loaded, request, loaded.model->hash(), 0)));
    EXPECT_TRUE(different.insert(png).second);
  };
  expect_alike(json::object());
  request.original = {64, 40, 8, 16};
  expect_alike({{"original_size", "64x40"}, {"crop", "8,16"}});
  request.original = {};
  request.negative = "";
  expect_alike({{"negative", ""}});
}

TEST_F(ApiJobs, TheRequestIsToldAsItWasUnderstood) {
  const json job =
      ended(submit("/api/generate", {{"prompt", "x"}, {"size", "32x48"}, {"steps", 1}}));
  EXPECT_EQ(job["model"], "emoji");
  EXPECT_EQ(job["request"]["width"], 32);
  EXPECT_EQ(job["request"]["height"], 48);
  EXPECT_EQ(job["request"]["count"], 1);
  EXPECT_TRUE(job["request"]["seed"].is_number_integer());
  EXPECT_EQ(job["results"][0]["seed"], job["request"]["seed"]);
  EXPECT_EQ(job["summary"]["precision"]["asked"], "auto");
  EXPECT_EQ(job["position"], nullptr);
  EXPECT_GE(job["finished"], job["started"]);
}

TEST_F(ApiJobs, CancelledInEveryState) {
  const std::string running = submit_picture(endless());
  ASSERT_FALSE(wait_for(running, "progress", 2).is_null());
  EXPECT_THAT(client().send("DELETE", "/api/jobs/" + running), IsError(409, "conflict", ""));
  EXPECT_THAT(post("/api/jobs/" + running + "/resume"), IsError(409, "conflict", ""));
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(cancel(running)["state"], "cancelled");
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5));
  EXPECT_EQ(cancel(running)["state"], "cancelled") << "a second time";
  EXPECT_THAT(post("/api/jobs/" + running + "/resume"), IsError(409, "conflict", ""));

  const std::string done = submit_picture();
  EXPECT_EQ(ended(done)["state"], "done");
  EXPECT_EQ(cancel(done)["state"], "done") << "the end counts";

  start([](ServerOptions& options) { options.most_rows = 1; });
  const std::string first = submit_picture(endless()), queued = submit_picture();
  EXPECT_EQ(cancel(queued)["state"], "cancelled");
  EXPECT_EQ(job(queued)["started"], nullptr) << "was never begun";
  EXPECT_EQ(cancel(first)["state"], "cancelled");
}

TEST_F(ApiJobs, RemovedWithEverything) {
  const std::string id = submit_picture();
  ended(id);
  EXPECT_EQ(get("/api/jobs/" + id + "/files/1.png").status, 200);
  EXPECT_EQ(remove("/api/jobs/" + id).status, 204);
  for (const char* part : {"", "/files/1.png", "/events", "/cancel", "/resume"}) {
    const std::string target = "/api/jobs/" + id + part;
    const bool posted = std::string(part) == "/cancel" || std::string(part) == "/resume";
    EXPECT_THAT(posted ? post(target) : get(target), IsError(404, "not_found", "")) << target;
  }
  EXPECT_THAT(remove("/api/jobs/" + id), IsError(404, "not_found", ""));
  EXPECT_THAT(get("/api/jobs").json()["jobs"], testing::IsEmpty());
}

TEST_F(ApiJobs, EventsAreReplayedFromWhereAClientWas) {
  const std::string id = submit_picture({{"count", 2}});
  const std::vector<SseEvent> all = events(id);
  ASSERT_GE(all.size(), 5u);
  std::vector<std::string> states;
  int results = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].data["job"], id);
    EXPECT_EQ(all[i].data["seq"], all[i].id);
    EXPECT_GT(all[i].data["time"].get<double>(), 1e9);
    if (i > 0) {
      EXPECT_GT(all[i].id, all[i - 1].id);
    }
    if (all[i].type == "state") states.push_back(all[i].data["state"]);
    results += all[i].type == "result" ? 1 : 0;
  }
  EXPECT_THAT(states, ElementsAre("queued", "running", "done"));
  EXPECT_EQ(results, 2);
  EXPECT_EQ(all.front().type, "state");
  EXPECT_EQ(all.back().type, "state");
  const std::string target = "/api/jobs/" + id + "/events";
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    const auto rest =
        test::parse_events(get(target, {{"Last-Event-ID", std::to_string(all[i].id)}}).body);
    ASSERT_EQ(rest.size(), all.size() - i - 1);
    EXPECT_EQ(rest.front().id, all[i + 1].id);
    EXPECT_EQ(events(id, all[i].id).size(), rest.size());
  }
  EXPECT_EQ(get(target, {{"Last-Event-ID", std::to_string(all.back().id)}}).status, 204);
}

TEST_F(ApiJobs, EventsOfAllJobsAreOneStream) {
  test::EventReader reader(server_->port(), "/api/events?after=0");
  const std::string a = submit_picture(), b = submit_picture();
  std::map<std::string, int> done;
  int64_t last = 0;
  while (done.size() < 2) {
    const auto event = reader.next();
    ASSERT_TRUE(event.has_value());
    EXPECT_GT(event->id, last);
    last = event->id;
    if (event->data.value("state", "") == "done") ++done[event->data["job"]];
  }
  EXPECT_TRUE(done.contains(a) && done.contains(b));
}

TEST_F(ApiJobs, ListedByKindStateAndPage) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(submit_picture());
  for (const std::string& id : ids) ended(id);
  std::vector<std::string> listed;
  json next = nullptr;
  do {
    const std::string before = next.is_null() ? "" : "&before=" + next.get<std::string>();
    const json page = get("/api/jobs?limit=2" + before).json();
    for (const json& job : page["jobs"]) listed.push_back(job["id"]);
    next = page["next"];
  } while (!next.is_null());
  EXPECT_EQ(listed, std::vector<std::string>(ids.rbegin(), ids.rend()));
  EXPECT_EQ(get("/api/jobs?state=failed").json()["jobs"].size(), 0u);
  EXPECT_EQ(get("/api/jobs?kind=train").json()["jobs"].size(), 0u);
  EXPECT_EQ(get("/api/jobs?kind=generate&state=done").json()["jobs"].size(), 5u);
}

TEST_F(ApiJobs, AFullQueueSaysSoAndHigherPrioritiesComeFirst) {
  start([](ServerOptions& options) {
    options.most_rows = 1;
    options.limits.most_queued = 3;
  });
  const std::string first = submit_picture(endless());
  ASSERT_FALSE(wait_for(first, "progress", 2).is_null());
  std::vector<std::string> waiting;
  for (const int priority : {-1, 0, 5}) waiting.push_back(submit_picture({{"priority", priority}}));
  EXPECT_EQ(job(waiting[0])["position"], 2);
  EXPECT_EQ(job(waiting[1])["position"], 1);
  EXPECT_EQ(job(waiting[2])["position"], 0);
  const json small = {{"prompt", "x"}, {"size", "32x32"}, {"steps", 1}};
  for (const char* target : {"/api/generate", "/v1/images/generations"}) {
    const HttpReply refused = post(target, small);
    EXPECT_EQ(refused.status, 429) << refused.body;
    EXPECT_GE(std::atoi(refused.header("retry-after").c_str()), 1);
  }
  EXPECT_THAT(post("/api/generate", small), IsError(429, "busy", ""));
  EXPECT_EQ(get("/api/info").json()["queue"]["queued"], 3);
  cancel(first);
  std::vector<double> started;
  for (const std::string& id : waiting) started.push_back(ended(id)["started"]);
  EXPECT_GT(started[0], started[1]);
  EXPECT_GT(started[1], started[2]);
}

TEST_F(ApiJobs, WhatTakesTooLongIsGivenUp) {
  json late = endless();
  late["timeout"] = 0.3;
  const std::string running = submit_picture(late);
  const json job = ended(running);
  EXPECT_EQ(job["state"], "failed");
  EXPECT_EQ(job["error"]["code"], "timeout");
  EXPECT_GE(job["finished"].get<double>() - job["created"].get<double>(), 0.3);
  start([](ServerOptions& options) { options.most_rows = 1; });
  const std::string first = submit_picture(endless());
  ASSERT_FALSE(wait_for(first, "progress", 2).is_null());
  const json waited = ended(submit_picture({{"timeout", 0.3}}));
  EXPECT_EQ(waited["state"], "failed");
  EXPECT_EQ(waited["started"], nullptr);
  EXPECT_TRUE(waited["error"].contains("field") && waited["error"].contains("message")) << waited;
  cancel(first);
}

TEST_F(ApiJobs, AnAdapterThatHasGoneFailsItsJobAlone) {
  start([](ServerOptions& options) { options.most_rows = 1; });
  make_dataset("set");
  ASSERT_EQ(ended(submit("/api/train", test::small_training("style", 2)))["state"], "done");
  const std::string first = submit_picture(endless());
  ASSERT_FALSE(wait_for(first, "progress", 2).is_null());
  const std::string id = submit_picture({{"loras", {{{"name", "style"}}}}});
  std::filesystem::remove(dir_ / "data/loras/style.safetensors");
  cancel(first);
  const json job = ended(id);
  EXPECT_EQ(job["state"], "failed");
  EXPECT_EQ(job["error"]["field"], "loras");
  EXPECT_EQ(ended(submit_picture())["state"], "done");
  EXPECT_THAT(post("/api/generate", {{"prompt", "x"}, {"loras", {{{"name", "style"}}}}}),
              IsError(400, "invalid", "loras"));
}

TEST_F(ApiJobs, PreviewsAreThereWhileItRuns) {
  json body = endless();
  body["previews"] = true;
  body["size"] = "64x64";
  const std::string id = submit_picture(body);
  const json event = wait_for(id, "preview");
  ASSERT_FALSE(event.is_null());
  const HttpReply preview = get(event["url"]);
  EXPECT_EQ(preview.status, 200);
  EXPECT_EQ(preview.header("content-type"), "image/png");
  EXPECT_TRUE(preview.body.starts_with("\x89PNG"));
  cancel(id);
  // Whoever was told of it a moment ago may still see it, until the job is forgotten.
  EXPECT_EQ(get(event["url"]).status, 200);
  EXPECT_EQ(remove("/api/jobs/" + id).status, 204);
  EXPECT_THAT(get(event["url"]), IsError(404, "not_found", ""));
}

TEST(Previews, OfEndedJobsAFewAreKept) {
  Previews previews;
  for (int i = 0; i < 100; ++i) {
    previews.put(std::to_string(i), "png");
    previews.end(std::to_string(i));
  }
  EXPECT_EQ(previews.find("50"), nullptr);
  EXPECT_NE(previews.find("90"), nullptr);
  previews.put("running", std::string(3 << 20, 'x'));
  previews.put("large", std::string(3 << 20, 'x'));
  previews.end("large");
  previews.put("larger", std::string(3 << 20, 'x'));
  previews.end("larger");
  EXPECT_EQ(previews.find("99"), nullptr);
  EXPECT_EQ(previews.find("large"), nullptr);
  EXPECT_NE(previews.find("larger"), nullptr);
  EXPECT_NE(previews.find("running"), nullptr);
  previews.put("larger", "begun again");
  previews.end("running");
  EXPECT_NE(previews.find("larger"), nullptr);
}

// Streams of events that go on for ever end as they are to when the server does.
TEST_F(ApiJobs, StreamsAreWholeWhenTheServerEnds) {
  const std::string id = submit_picture(endless());
  std::vector<std::unique_ptr<test::HttpConnection>> open;
  for (const std::string target : {"/api/events", "/api/events?after=0"}) {
    open.push_back(std::make_unique<test::HttpConnection>(server_->port()));
    open.back()->send("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  open.push_back(std::make_unique<test::HttpConnection>(server_->port()));
  open.back()->send("GET /api/jobs/" + id + "/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  std::vector<std::string> heard;
  for (const auto& connection : open) heard.push_back(connection->read_some());
  const auto begun = std::chrono::steady_clock::now();
  stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
  for (size_t i = 0; i < open.size(); ++i) {
    heard[i] += open[i]->read_all();
    EXPECT_TRUE(heard[i].ends_with("\r\n0\r\n\r\n")) << heard[i].substr(heard[i].size() - 60);
    // The last that happened: the job went back into the queue.
    EXPECT_THAT(heard[i], testing::HasSubstr("\"state\":\"queued\"")) << i;
  }
}

}  // namespace
}  // namespace halftone
