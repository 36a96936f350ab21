// Datasets, and the long work: training, quantizing, comparing; each from a request to its results.
#include "tests/server/api_fixture.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::ApiTest;
using test::HttpReply;
using test::IsError;
using test::small_training;
using testing::HasSubstr;
namespace fs = std::filesystem;

class ApiLong : public ApiTest {
 protected:
  void SetUp() override {
    start();
    make_dataset("set");
  }
};

TEST_F(ApiLong, PicturesAreUploadedReplacedAndRemoved) {
  const std::string set = "/api/datasets/set";
  EXPECT_EQ(put(set + "/files/0.png", some_png(16)).status, 204) << "replaces";
  EXPECT_EQ(get(set + "/files/0.png").body, some_png(16));
  EXPECT_EQ(put(set + "/files/sub/deep/x.png", some_png()).status, 201);
  EXPECT_EQ(put(set + "/files/caf%C3%A9.png", some_png()).status, 201);
  const json listed = get(set).json();
  EXPECT_EQ(listed["items"].size(), 5u);
  EXPECT_EQ(listed["skipped"].size(), 0u);
  for (const json& item : listed["items"]) EXPECT_EQ(get(item["url"]).status, 200) << item;
  EXPECT_EQ(get("/api/datasets").json()["datasets"][0]["pictures"], 5);
  EXPECT_EQ(get("/api/datasets").json()["datasets"][0]["captioned"], 3);
  const std::string large = some_png() + std::string(3 << 20, 'x');  // what follows is passed over
  EXPECT_EQ(put(set + "/files/0.png", large).status, 204);
  EXPECT_EQ(get(set + "/files/0.png").body.size(), large.size());
  EXPECT_EQ(remove(set + "/files/0.png").status, 204);
  EXPECT_EQ(get(set + "/files/0.txt").status, 404) << "its caption goes with it";
  EXPECT_EQ(remove(set + "/files/0.png").status, 404);
  EXPECT_THAT(post("/api/datasets", {{"name", "set"}}), IsError(409, "conflict", "name"));
  EXPECT_EQ(remove(set).status, 204);
  EXPECT_FALSE(fs::exists(dir_ / "data/datasets/set"));
  EXPECT_THAT(get(set), IsError(404, "not_found", "dataset"));
}

TEST_F(ApiLong, BadPicturesAreNotKept) {
  const std::string files = "/api/datasets/set/files/";
  const std::string png = some_png(64);
  for (const auto& [name, bytes] :
       std::vector<std::pair<std::string, std::string>>{{"bad.png", "no picture"},
                                                        {"bad.png", ""},
                                                        {"bad.png", png.substr(0, 60)},
                                                        {"bad.jpg", "GIF89a"},
                                                        {"bad.gif", png},
                                                        {"bad.svg", "<svg/>"},
                                                        {"bad", png},
                                                        {"bad.html", "<b>"},
                                                        {"bad.safetensors", png}}) {
    EXPECT_THAT(put(files + name, bytes), IsError(415, "unsupported_media", "file")) << name;
  }
  std::string flipped = png;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 0x55);
  EXPECT_EQ(put(files + "0.png", flipped).status, 415);
  EXPECT_EQ(get(files + "0.png").body, some_png(32, 0)) << "the good one stays";
  EXPECT_THAT(put(files + "0.txt", "\xff"), IsError(400, "invalid", "caption"));
  EXPECT_EQ(put(files + "0.txt", std::string(1 << 17, 'a')).status, 413);
  EXPECT_EQ(get("/api/datasets/set").json()["items"].size(), 3u);
  for (const auto& left : fs::directory_iterator(dir_ / "data/datasets/set")) {
    EXPECT_THAT(left.path().filename().string(), testing::MatchesRegex("[0-2]\\.(png|txt)"));
  }
  start([](ServerOptions& options) { options.limits.most_upload_bytes = 50; });
  EXPECT_THAT(put(files + "0.png", png), IsError(413, "too_large", ""));
}

TEST_F(ApiLong, FoldersOfOthersAreOnlyRead) {
  fs::create_directories(dir_ / "mine/fixed");
  test::write_file(dir_ / "mine/fixed/a.png", some_png());
  start([&](ServerOptions& options) { options.datasets = {dir_ / "mine"}; });
  const json listed = get("/api/datasets/fixed").json();
  EXPECT_EQ(listed["editable"], false);
  EXPECT_EQ(listed["items"].size(), 1u);
  EXPECT_THAT(remove("/api/datasets/fixed"), IsError(403, "forbidden", "dataset"));
  EXPECT_THAT(remove("/api/datasets/fixed/files/a.png"), IsError(403, "forbidden", "dataset"));
  EXPECT_THAT(put("/api/datasets/fixed/files/b.png", some_png()),
              IsError(403, "forbidden", "dataset"));
  fs::create_symlink("/etc/hostname", dir_ / "data/datasets/set/link.txt");
  fs::create_directory_symlink("/etc", dir_ / "data/datasets/set/etc");
  EXPECT_EQ(get("/api/datasets/set/files/link.txt").status, 404);
  EXPECT_EQ(get("/api/datasets/set/files/etc/hostname.txt").status, 404);
  EXPECT_GE(put("/api/datasets/set/files/link.txt", "x").status, 400);
}

TEST_F(ApiLong, TrainedAndUsed) {
  json body = small_training("style", 4);
  body["sample_every"] = 4;
  body["sample_prompts"] = {"a square"};
  body["trigger"] = "sks";
  const std::string id = submit("/api/train", body);
  const json job = ended(id);
  ASSERT_EQ(job["state"], "done") << job;
  EXPECT_EQ(job["summary"]["lora"], "style");
  EXPECT_EQ(job["summary"]["steps"], 4);
  EXPECT_FALSE(job["can_resume"]);
  int steps = 0, checkpoints = 0;
  for (const test::SseEvent& event : events(id)) {
    steps += event.data.value("stage", "") == "training" ? 1 : 0;
    checkpoints += event.type == "checkpoint" ? 1 : 0;
  }
  EXPECT_EQ(steps, 4);
  EXPECT_GE(checkpoints, 1);
  std::map<std::string, int> media;
  for (const json& result : job["results"]) {
    ++media[result["media"]];
    const HttpReply file = get(result["url"]);
    EXPECT_EQ(file.status, 200) << result;
    EXPECT_EQ(file.body.size(), result["bytes"].get<size_t>());
    if (result["media"] == "page") {
      EXPECT_THAT(file.header("content-security-policy"), HasSubstr("sandbox"));
    }
  }
  EXPECT_EQ(media["adapter"], 1);
  EXPECT_EQ(media["page"], 1);
  EXPECT_GE(media["image"], 1);

  const json loras = get("/api/loras").json()["loras"];
  ASSERT_EQ(loras.size(), 1u);
  EXPECT_EQ(loras[0]["name"], "style");
  EXPECT_EQ(loras[0]["trigger"], "sks");
  const auto picture = [&](const json& more) {
    return get("/api/jobs/" + ended(submit_picture(more))["id"].get<std::string>() + "/files/1.png")
        .body;
  };
  const json with = {{"loras", {{{"name", "style"}}}}};
  EXPECT_EQ(picture(with), picture(with));
  EXPECT_NE(picture(with), picture(json::object()));
  EXPECT_THAT(post("/api/train", body), IsError(409, "conflict", "name"));
}

TEST_F(ApiLong, ACancelledTrainingIsResumed) {
  const std::string whole = submit("/api/train", small_training("whole", 24));
  ASSERT_EQ(ended(whole)["state"], "done");
  const std::string id = submit("/api/train", small_training("parts", 24));
  ASSERT_FALSE(wait_for(id, "checkpoint", 2).is_null());
  const json stopped = cancel(id);
  ASSERT_EQ(stopped["state"], "cancelled") << stopped;
  EXPECT_TRUE(stopped["can_resume"]);
  EXPECT_FALSE(fs::exists(dir_ / "data/loras/parts.safetensors"));
  const HttpReply resumed = post("/api/jobs/" + id + "/resume");
  EXPECT_EQ(resumed.status, 202) << resumed.body;
  const json job = ended(id);
  EXPECT_EQ(job["state"], "done") << job;
  EXPECT_EQ(job["summary"]["steps"], 24);
  EXPECT_EQ(test::read_file(dir_ / "data/loras/parts.safetensors"),
            test::read_file(dir_ / "data/loras/whole.safetensors"));
  EXPECT_THAT(post("/api/jobs/" + id + "/resume"), IsError(409, "conflict", ""));
}

TEST_F(ApiLong, ADatasetThatHasGoneFailsItsTraining) {
  const std::string first = submit("/api/train", small_training("one", 2000));
  ASSERT_FALSE(wait_for(first, "checkpoint").is_null());
  const std::string id = submit("/api/train", small_training("two", 2));
  EXPECT_EQ(remove("/api/datasets/set").status, 204);
  cancel(first);
  const json job = ended(id);
  EXPECT_EQ(job["state"], "failed");
  EXPECT_EQ(job["error"]["field"], "dataset");
}

TEST_F(ApiLong, ATrainedModelIsAModelLikeOthers) {
  for (const char* mode : {"full", "qat"}) {
    json body = small_training(mode, 1);
    body["mode"] = mode;
    body["precision"] = mode == std::string("qat") ? "mxfp8" : "auto";
    const json job = ended(submit("/api/train", body));
    ASSERT_EQ(job["state"], "done") << job;
    EXPECT_EQ(job["summary"]["model"], mode);
    EXPECT_EQ(job["summary"]["lora"], nullptr);
    EXPECT_THAT(post("/api/train", body), IsError(409, "conflict", "name"));
    const json made = ended(submit_picture({{"model", mode}}));
    EXPECT_EQ(made["state"], "done") << made;
  }
  EXPECT_EQ(get("/api/loras").json()["loras"], json::array());
  json full;
  const json models = get("/api/models").json()["models"];
  for (const json& model : models) {
    if (model["id"] == "full") full = model;
  }
  ASSERT_TRUE(full.is_object());
  EXPECT_EQ(full["error"], "");
  EXPECT_EQ(full["quantizes"]["possible"], true);
  EXPECT_EQ(full["loaded"], json::array({full["recommended"]["precision"]}))
      << "named, and not 'auto'";
  const json small =
      ended(submit("/api/quantize",
                   {{"model", "full"}, {"name", "less"}, {"format", "fp8"}, {"calibrate", false}}));
  EXPECT_EQ(small["state"], "done") << small;
  EXPECT_TRUE(fs::exists(dir_ / "data/models/full/model_index.json"));
}

TEST_F(ApiLong, MessagesNameThingsAndNoPlaces) {
  test::write_file(dir_ / "data/datasets/set/torn.png", "no picture");
  test::write_file(dir_ / "data/datasets/set/torn.txt", "a square");
  const std::string id = submit("/api/train", small_training("style", 2));
  const json job = ended(id);
  ASSERT_EQ(job["state"], "done") << job;
  EXPECT_THAT(job["summary"]["notes"].dump(), HasSubstr("the first: set/torn.png"));
  EXPECT_THAT(job.dump(), testing::Not(HasSubstr(dir_.path().string())));
  for (const test::SseEvent& event : events(id)) {
    EXPECT_THAT(event.data.dump(), testing::Not(HasSubstr(dir_.path().string())));
  }
  for (const json& result : job["results"]) {
    if (result["media"] != "page") continue;
    EXPECT_THAT(get(result["url"]).body, testing::Not(HasSubstr(dir_.path().string())));
  }
}

TEST_F(ApiLong, QuantizedIntoAModelThatIsUsedAndCompared) {
  const std::string id = submit("/api/quantize", {{"name", "small"},
                                                  {"format", "mxfp8"},
                                                  {"samples", 1},
                                                  {"certify", 1},
                                                  {"steps", 1},
                                                  {"size", "32x32"}});
  const json job = ended(id);
  ASSERT_EQ(job["state"], "done") << job;
  EXPECT_EQ(job["summary"]["model"], "small");
  EXPECT_LT(job["summary"]["bytes_after"], job["summary"]["bytes_before"]);
  ASSERT_TRUE(job["summary"]["certificate"].is_object()) << job;
  EXPECT_GT(job["summary"]["certificate"]["velocity_cosine_mean"], 0.9);
  bool listed = false;
  const json models = get("/api/models").json();
  for (const json& model : models["models"]) listed |= model["id"] == "small";
  EXPECT_TRUE(listed);
  const json made = ended(submit_picture({{"model", "small"}, {"precision", "mxfp8"}}));
  EXPECT_EQ(made["state"], "done") << made;
  EXPECT_EQ(made["summary"]["precision"]["used"], "mxfp8");
  EXPECT_THAT(post("/api/quantize", {{"name", "small"}, {"format", "fp8"}}),
              IsError(409, "conflict", "name"));
  EXPECT_THAT(post("/api/quantize", {{"name", "x"}, {"format", "fp8"}, {"model", "small"}}),
              IsError(400, "invalid", "model"));

  const json compared = ended(submit("/api/compare", {{"precisions", {"fp8", "small"}},
                                                      {"reference", "fp32"},
                                                      {"steps", 1},
                                                      {"prompts", {"a cat"}},
                                                      {"width", 32},
                                                      {"height", 32}}));
  ASSERT_EQ(compared["state"], "done") << compared;
  ASSERT_EQ(compared["summary"]["rows"].size(), 3u) << "the reference, and two";
  for (const json& row : compared["summary"]["rows"]) {
    EXPECT_GT(row["velocity_cosine"], 0.9);
    EXPECT_EQ(row["velocity_cosine"] >= 1.0, row["precision"] == "fp32") << row;
  }
  const HttpReply page = get(compared["results"][0]["url"]);
  EXPECT_THAT(page.header("content-type"), HasSubstr("text/html"));
  EXPECT_THAT(page.header("content-security-policy"), HasSubstr("sandbox"));
}

}  // namespace
}  // namespace halftone
