// Adapters that clients bring: what is kept, what it fits, and what is refused.
#include <limits>

#include "tests/server/api_fixture.h"
#include "tests/server/lora_bytes.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::ApiTest;
using test::HttpReply;
using test::IsError;
using test::LoraTensor;
using test::safetensors_bytes;
using test::some_lora;
using testing::HasSubstr;
namespace fs = std::filesystem;

class ApiLoras : public ApiTest {
 protected:
  void SetUp() override { start(); }

  json listed(const std::string& name) const {
    const json loras = get("/api/loras").json()["loras"];
    for (const json& lora : loras) {
      if (lora["name"] == name) return lora;
    }
    return nullptr;
  }
  std::string refusal(const std::string& bytes) const {
    const HttpReply reply = put("/api/loras/bad", bytes);
    EXPECT_THAT(reply, IsError(415, "unsupported_media", "file"));
    return reply.json().value("/error/message"_json_pointer, "");
  }
  std::string picture(const json& more) const {
    const json job = ended(submit_picture(more));
    EXPECT_EQ(job["state"], "done") << job;
    return get("/api/jobs/" + job["id"].get<std::string>() + "/files/1.png").body;
  }
};

TEST_F(ApiLoras, UploadedUsedReplacedAndRemoved) {
  const HttpReply made = put("/api/loras/style.safetensors", some_lora(0.5f));
  ASSERT_EQ(made.status, 201) << made.body;
  EXPECT_EQ(made.json()["name"], "style");
  EXPECT_EQ(made.json()["fits"], json({"emoji"}));
  EXPECT_EQ(made.json()["unfit"], json::array());
  EXPECT_EQ(made.json()["editable"], true);
  EXPECT_EQ(made.json()["error"], "");
  EXPECT_EQ(listed("style"), made.json());
  const json with = {{"loras", {{{"name", "style"}}}}};
  const std::string first = picture(with);
  EXPECT_NE(first, picture(json::object()));

  EXPECT_THAT(put("/api/loras/style", some_lora(0.7f)), IsError(409, "conflict", "name"));
  EXPECT_THAT(put("/api/loras/style?replace=yes", some_lora()), IsError(400, "invalid", "replace"));
  EXPECT_EQ(picture(with), first) << "it was replaced";
  EXPECT_EQ(put("/api/loras/style?replace=true", some_lora(0.7f)).status, 200);
  EXPECT_NE(picture(with), first) << "the one before is still used";

  EXPECT_EQ(remove("/api/loras/style").status, 204);
  EXPECT_EQ(listed("style"), nullptr);
  EXPECT_THAT(remove("/api/loras/style"), IsError(404, "not_found", ""));
  EXPECT_TRUE(fs::is_empty(dir_ / "data/loras"));
}

TEST_F(ApiLoras, SayWhatTheyFit) {
  const test::LoraModule module = test::some_lora_module();
  const std::string name = "transformer." + module.path;
  const std::string other = safetensors_bytes({{"transformer.far.away.lora_A.weight", {2, 8}},
                                               {"transformer.far.away.lora_B.weight", {8, 2}}});
  ASSERT_EQ(put("/api/loras/other", other).status, 201);
  EXPECT_EQ(listed("other")["fits"], json::array());
  EXPECT_EQ(listed("other")["unfit"][0]["model"], "emoji");
  EXPECT_THAT(listed("other")["unfit"][0]["why"], HasSubstr("transformer.far.away.lora_A"));
  const HttpReply asked =
      post("/api/generate", {{"prompt", "x"}, {"loras", {{{"name", "other"}}}}});
  EXPECT_THAT(asked, IsError(400, "invalid", "loras"));
  EXPECT_THAT(asked.body, HasSubstr("'other' does not fit 'emoji'"));

  const std::string wide = safetensors_bytes(
      {{name + ".lora_A.weight", {2, module.in + 1}}, {name + ".lora_B.weight", {module.out, 2}}});
  ASSERT_EQ(put("/api/loras/wide", wide).status, 201);
  EXPECT_THAT(listed("wide")["unfit"][0]["why"], HasSubstr(name + ".lora_A.weight' is ["));

  const std::string partly = safetensors_bytes({{name + ".lora_A.weight", {2, module.in}},
                                                {name + ".lora_B.weight", {module.out, 2}},
                                                {"lora_te_x.lora_down.weight", {2, 8}},
                                                {"lora_te_x.lora_up.weight", {8, 2}}},
                                               R"({"halftone.trigger": "sks"})");
  ASSERT_EQ(put("/api/loras/partly", partly).status, 201);
  EXPECT_EQ(listed("partly")["fits"], json({"emoji"}));
  EXPECT_EQ(listed("partly")["partly"][0]["unmatched"], 2);
  EXPECT_EQ(listed("partly")["partly"][0]["first"], "lora_te_x.lora_down.weight");
  EXPECT_EQ(listed("partly")["trigger"], "sks");

  test::write_file(dir_ / "data/loras/broken.safetensors", "no header");
  EXPECT_NE(listed("broken")["error"], "");
  EXPECT_EQ(listed("broken")["fits"], json::array());
}

TEST_F(ApiLoras, WhatIsNoAdapterIsRefusedInOneLine) {
  const std::string a = "transformer.x.lora_A.weight", b = "transformer.x.lora_B.weight";
  const LoraTensor down{a, {2, 4}}, up{b, {4, 2}};
  const std::string good = safetensors_bytes({down, up});
  refusal("");
  refusal("no safetensors");
  refusal(std::string(8, '\xff') + good);
  refusal(good.substr(0, good.size() - 1));
  refusal(good.substr(0, 20));
  EXPECT_THAT(refusal(safetensors_bytes({})), HasSubstr("holds no low-rank adapter"));
  EXPECT_THAT(refusal(safetensors_bytes({{"layers.0.w1.weight", {4, 4}}})),
              HasSubstr("tensor 'layers.0.w1.weight' is part of an adapter of another kind"));
  EXPECT_THAT(refusal(safetensors_bytes({down, up, {"transformer.x.dora_scale", {4}}})),
              HasSubstr("'transformer.x.dora_scale' is part of an adapter of another kind: DoRA"));
  EXPECT_THAT(refusal(safetensors_bytes({{"lora_unet_x.hada_w1_a", {2, 2}}})), HasSubstr("LoHa"));
  EXPECT_THAT(refusal(safetensors_bytes({{"lora_unet_x.lokr_w1", {2, 2}}})), HasSubstr("LoKr"));
  EXPECT_THAT(refusal(safetensors_bytes({down})),
              HasSubstr("module 'transformer.x' has no lora_B"));
  EXPECT_THAT(refusal(safetensors_bytes({down, {b, {4, 2, 1}}})),
              HasSubstr("is neither a matrix nor a convolution's kernel"));
  EXPECT_THAT(refusal(safetensors_bytes({down, {b, {4, 2}, 0.0f, "U8"}})),
              HasSubstr("is not F32, BF16 or F16"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal(safetensors_bytes({down, {b, {4, 2}, nan}})),
              HasSubstr("tensor '" + b + "' holds NaN or Inf"));
  EXPECT_EQ(get("/api/loras").json()["loras"], json::array());
  EXPECT_TRUE(fs::is_empty(dir_ / "data/loras")) << "something was left";
  ASSERT_EQ(put("/api/loras/bad", good).status, 201);
  EXPECT_EQ(put("/api/loras/bad?replace=true", "no safetensors").status, 415);
  EXPECT_EQ(test::read_file(dir_ / "data/loras/bad.safetensors"), good) << "the good one stays";
}

TEST_F(ApiLoras, NamesLeadNowhereElse) {
  for (const char* name : {"..%2fx", "%2e%2e", "..%5cx", ".hidden", "a%00b", "%2fetc%2fpasswd",
                           "a%2fb", "%20x", "a%0ab", "%ff", ".safetensors", "a%3cb"}) {
    const HttpReply reply = put(std::string("/api/loras/") + name, some_lora());
    EXPECT_GE(reply.status, 400) << name;
    EXPECT_LT(reply.status, 500) << name << reply.body;
    EXPECT_GE(remove(std::string("/api/loras/") + name).status, 400) << name;
  }
  EXPECT_EQ(put("/api/loras/" + std::string(101, 'a'), some_lora()).status, 400);
  EXPECT_TRUE(fs::is_empty(dir_ / "data/loras")) << "something was written";

  // Links of this folder are someone's: they can be used, and are not followed to be changed.
  test::write_file(dir_ / "outside.safetensors", some_lora());
  fs::create_symlink(dir_ / "outside.safetensors", dir_ / "data/loras/link.safetensors");
  EXPECT_EQ(listed("link")["editable"], false);
  EXPECT_GE(put("/api/loras/link?replace=true", some_lora(0.9f)).status, 400);
  EXPECT_THAT(remove("/api/loras/link"), IsError(403, "forbidden", "name"));
  EXPECT_EQ(test::read_file(dir_ / "outside.safetensors"), some_lora());
  EXPECT_TRUE(fs::is_symlink(dir_ / "data/loras/link.safetensors"));
}

TEST_F(ApiLoras, FilesOfOthersAreOnlyRead) {
  fs::create_directories(dir_ / "mine");
  test::write_file(dir_ / "mine/given.safetensors", some_lora());
  start([&](ServerOptions& options) {
    options.loras = {dir_ / "mine"};
    options.limits.most_lora_bytes = static_cast<int64_t>(some_lora().size());
  });
  EXPECT_EQ(listed("given")["editable"], false);
  EXPECT_THAT(remove("/api/loras/given"), IsError(403, "forbidden", "name"));
  EXPECT_THAT(put("/api/loras/given", some_lora()), IsError(409, "conflict", "name"));
  EXPECT_THAT(put("/api/loras/given?replace=true", some_lora()), IsError(403, "forbidden", "name"));
  EXPECT_EQ(put("/api/loras/mine", some_lora()).status, 201);
  EXPECT_THAT(put("/api/loras/large", some_lora() + "x"), IsError(413, "too_large", ""));
}

}  // namespace
}  // namespace halftone
