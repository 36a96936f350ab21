// What programs made for other servers ask: OpenAI's pictures, and A1111's.
#include "tests/server/api_fixture.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::ApiTest;
using test::endless;
using test::HttpReply;
using test::IsError;
using testing::Contains;
using testing::StartsWith;

constexpr const char* kPngInBase64 = "iVBORw0KGgo";

class ApiClients : public ApiTest {
 protected:
  void SetUp() override { start(); }
  HttpReply openai(const json& more) const {
    json body = {{"prompt", "a cat"}, {"size", "32x32"}, {"steps", 1}, {"seed", 1}};
    body.update(more);
    return post("/v1/images/generations", body);
  }
  HttpReply a1111(const json& more) const {
    json body = {{"prompt", "a cat"}, {"width", 32}, {"height", 32}, {"steps", 1}, {"seed", 1}};
    body.update(more);
    return post("/sdapi/v1/txt2img", body);
  }
};

TEST_F(ApiClients, OpenAiPictures) {
  const json reply = openai({{"n", 2}, {"response_format", "b64_json"}, {"user", "x"}}).json();
  ASSERT_EQ(reply["data"].size(), 2u) << reply;
  EXPECT_THAT(reply["data"][0]["b64_json"].get<std::string>(), StartsWith(kPngInBase64));
  EXPECT_NE(reply["data"][0], reply["data"][1]);
  EXPECT_THAT(reply["ignored"], Contains("user"));
  const std::string url = openai({{"response_format", "url"}}).json()["data"][0]["url"];
  ASSERT_THAT(url, StartsWith("http://localhost/api/jobs/"));
  EXPECT_TRUE(get(url.substr(std::string("http://localhost").size())).body.starts_with("\x89PNG"));
  EXPECT_EQ(get("/v1/models").json()["data"][0]["id"], "emoji");
  EXPECT_EQ(get("/v1/models/none").status, 404);
}

TEST_F(ApiClients, OpenAiErrorsHaveItsShape) {
  for (const auto& [more, param] :
       std::vector<std::pair<json, std::string>>{{{{"prompt", 5}}, "prompt"},
                                                 {{{"model", "dall-e-3"}}, "model"},
                                                 {{{"size", "32"}}, "size"},
                                                 {{{"response_format", "jpeg"}}, "response_format"},
                                                 {{{"stream", true}}, "stream"},
                                                 {{{"output_format", "webp"}}, "output_format"},
                                                 {{{"unheard_of", 1}}, "unheard_of"},
                                                 {{{"steps", 0}}, "steps"}}) {
    const HttpReply reply = openai(more);
    EXPECT_EQ(reply.status, 400) << more;
    const json error = reply.json()["error"];
    EXPECT_EQ(error["param"], param) << error;
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_TRUE(error["message"].is_string() && error["code"].is_string());
  }
  EXPECT_EQ(openai({{"n", 0}}).status, 400);
}

TEST_F(ApiClients, WhoeverGoesAwayEndsTheJob) {
  {
    test::HttpConnection connection(server_->port());
    json body = {{"prompt", "gone"}, {"size", "256x256"}, {"steps", 200}, {"n", 64}};
    const std::string text = body.dump();
    connection.send(
        "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nContent-Length: " +
        std::to_string(text.size()) + "\r\n\r\n" + text);
    json jobs;
    for (int i = 0; i < 200 && jobs.empty(); ++i) {
      ::usleep(10000);
      jobs = get("/api/jobs?state=running").json()["jobs"];
    }
    ASSERT_EQ(jobs.size(), 1u);
  }
  const std::string id = get("/api/jobs").json()["jobs"][0]["id"];
  EXPECT_EQ(ended(id)["state"], "cancelled");
}

TEST_F(ApiClients, A1111Pictures) {
  const json reply = a1111({{"batch_size", 2}, {"cfg_scale", 0}, {"enable_hr", false}}).json();
  ASSERT_EQ(reply["images"].size(), 2u) << reply;
  EXPECT_THAT(reply["images"][0].get<std::string>(), StartsWith(kPngInBase64));
  const json info = json::parse(reply["info"].get<std::string>());
  EXPECT_EQ(info["all_seeds"], json({1, 2}));
  EXPECT_THAT(info["unused"], Contains("enable_hr"));
  // The same pictures by every way in.
  EXPECT_EQ(
      reply["images"][0],
      openai({{"response_format", "b64_json"}, {"guidance", 0}}).json()["data"][0]["b64_json"]);
  EXPECT_EQ(a1111({{"prompt", "a <lora:none:1>"}}).status, 400);
  EXPECT_EQ(a1111({{"prompt", "a <lora:x:y>"}}).status, 400);
  EXPECT_EQ(a1111({{"steps", 0}}).status, 400);
  EXPECT_EQ(a1111({{"override_settings", {{"sd_model_checkpoint", "none"}}}}).status, 400);
}

// What its programs send unasked, for models that this one is not.
TEST_F(ApiClients, A1111SamplersAreThoseThatTheModelHas) {
  const auto used = [&](const json& more) {
    const json reply = a1111(more).json();
    EXPECT_TRUE(reply.contains("info")) << reply;
    const json info = json::parse(reply.value("info", "{}"));
    const json& unused = info["unused"];
    const bool left = std::find(unused.begin(), unused.end(), "sampler_name") != unused.end();
    return info["sampler_name"].get<std::string>() + (left ? ", unused" : "");
  };
  EXPECT_EQ(used({{"sampler_name", "Euler"}, {"scheduler", "Automatic"}}), "flow-euler");
  EXPECT_EQ(used({{"sampler_name", "Euler a"}}), ", unused");
  EXPECT_EQ(used({{"sampler_name", "DPM++ 2M"}, {"scheduler", "Karras"}}), "dpm++-2m");
  EXPECT_EQ(used({{"sampler_name", "unipc"}}), "unipc");
  EXPECT_EQ(used({{"sampler_name", "Automatic"}}), "");
  EXPECT_EQ(used({{"sampler_name", 5}}), ", unused");
  const json info = json::parse(a1111({{"seed", 3}}).json()["info"].get<std::string>());
  EXPECT_THAT(info["infotexts"][0].get<std::string>(), testing::HasSubstr("Seed: 3, Size: "));
}

TEST_F(ApiClients, A1111ChoosesWatchesAndInterrupts) {
  EXPECT_EQ(get("/sdapi/v1/sd-models").json()[0]["model_name"], "emoji");
  EXPECT_EQ(post("/sdapi/v1/options", {{"sd_model_checkpoint", "none"}}).status, 400);
  EXPECT_EQ(post("/sdapi/v1/options", {{"sd_model_checkpoint", "emoji"}}).status, 200);
  EXPECT_EQ(get("/sdapi/v1/options").json()["sd_model_checkpoint"], "emoji");
  const json several = {{"sd_model_checkpoint", "emoji [1a2b3c]"}, {"samples_save", true}};
  EXPECT_EQ(post("/sdapi/v1/options", several).json()["unused"], json({"samples_save"}));
  EXPECT_EQ(get("/sdapi/v1/progress").json()["progress"], 0.0);
  const std::string id = submit_picture(endless());
  ASSERT_FALSE(wait_for(id, "progress", 3).is_null());
  EXPECT_EQ(get("/sdapi/v1/progress").json()["state"]["job"], id);
  EXPECT_EQ(post("/sdapi/v1/interrupt").status, 200);
  EXPECT_EQ(ended(id)["state"], "cancelled");
}

}  // namespace
}  // namespace halftone
