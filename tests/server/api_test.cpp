// The whole API against the server's own document: every route, every field of every request.
#include <set>

#include "tests/server/api_fixture.h"
#include "tests/server/api_schema.h"
#include "tests/server/lora_bytes.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::ApiTest;
using test::HttpReply;
using test::IsError;
using test::schema_problems;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST(JsonSchema, FindsWhatIsWrong) {
  const json document = {{"parts", {{"Name", {{"type", "string"}}}}}};
  const json schema = json::parse(R"({"type": "object", "required": ["a"], "properties": {
      "a": {"$ref": "#/parts/Name"}, "b": {"type": ["integer", "null"], "minimum": 2},
      "c": {"type": "array", "items": {"enum": [1, 2]}},
      "d": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}}, "additionalProperties": false})");
  const auto problems = [&](const char* value) {
    return schema_problems(document, schema, json::parse(value));
  };
  EXPECT_THAT(problems(R"({"a": "x", "b": null, "c": [1, 2], "d": true})"), IsEmpty());
  EXPECT_THAT(problems(R"({})"), ElementsAre(": lacks a"));
  EXPECT_THAT(problems(R"({"a": 1})"), ElementsAre(HasSubstr(".a: is no \"string\"")));
  EXPECT_THAT(problems(R"({"a": "", "b": 1})"), ElementsAre(".b: is too small"));
  EXPECT_THAT(problems(R"({"a": "", "b": 2.5})"), ElementsAre(HasSubstr(".b: is no")));
  EXPECT_THAT(problems(R"({"a": "", "c": [1, 3]})"),
              ElementsAre(StartsWith(".c[1]: 3 is none of")));
  EXPECT_THAT(problems(R"({"a": "", "d": 5})"), ElementsAre(HasSubstr(".d: is none of anyOf")));
  EXPECT_THAT(problems(R"({"a": "", "e": 5})"), ElementsAre(": has e as well"));
  EXPECT_THAT(schema_problems(document, {{"oneOf", json::array()}}, 1),
              ElementsAre(HasSubstr("oneOf is not known")));
}

class ApiRoutes : public ApiTest {
 protected:
  void SetUp() override {
    start();
    document_ = get("/openapi.json").json();
  }

  // Asks for a route as the document writes it, and holds the answer to what that promises.
  HttpReply ask(const std::string& method, const std::string& path, const std::string& target,
                const json& body = nullptr, const std::string& bytes = "") {
    SCOPED_TRACE(method + " " + target);
    asked_.insert(method + " " + path);
    const HttpReply reply = method == "PUT"    ? put(target, bytes)
                            : method == "POST" ? post(target, body)
                                               : client().send(method, target);
    std::string lower = method;
    for (char& c : lower) c = static_cast<char>(std::tolower(c));
    if (!document_["paths"].contains(path) || !document_["paths"][path].contains(lower)) {
      ADD_FAILURE() << "is not in the document";
      return reply;
    }
    const json& operation = document_["paths"][path][lower];
    const std::string status = std::to_string(reply.status);
    const bool fine = operation["responses"].contains(status);
    EXPECT_TRUE(fine || reply.status >= 400) << status << " is not documented\n" << reply.body;
    const json& promised = operation["responses"][fine ? status : "default"];
    if (body.is_object()) {
      const json schema = operation["requestBody"]["content"]["application/json"]["schema"];
      EXPECT_THAT(schema_problems(document_, schema, body), IsEmpty());
    }
    if (!promised.contains("content")) {
      EXPECT_EQ(reply.body, "");
    } else if (promised["content"].contains("application/json")) {
      EXPECT_THAT(reply.header("content-type"), StartsWith("application/json"));
      const json schema = promised["content"]["application/json"]["schema"];
      EXPECT_THAT(schema_problems(document_, schema, reply.json()), IsEmpty());
    }
    EXPECT_EQ(reply.header("x-content-type-options"), "nosniff");
    EXPECT_THAT(reply.header("content-security-policy"), HasSubstr("default-src"));
    return reply;
  }
  void expect(int status, const HttpReply& reply) { EXPECT_EQ(reply.status, status) << reply.body; }

  json document_;
  std::set<std::string> asked_;
};

TEST_F(ApiRoutes, AllAnswerAsTheDocumentSays) {
  for (const char* path : {"/healthz",
                           "/readyz",
                           "/metrics",
                           "/openapi.json",
                           "/",
                           "/favicon.ico",
                           "/api/info",
                           "/api/models",
                           "/api/loras",
                           "/api/jobs",
                           "/api/datasets",
                           "/v1/models",
                           "/sdapi/v1/progress",
                           "/sdapi/v1/options",
                           "/sdapi/v1/sd-models",
                           "/sdapi/v1/loras",
                           "/sdapi/v1/samplers",
                           "/sdapi/v1/upscalers",
                           "/sdapi/v1/sd-vae",
                           "/sdapi/v1/prompt-styles",
                           "/sdapi/v1/hypernetworks",
                           "/sdapi/v1/embeddings",
                           "/sdapi/v1/schedulers"}) {
    expect(200, ask("GET", path, path));
  }
  expect(404, ask("GET", "/studio/{file}", "/studio/nothing.js"));
  expect(200, ask("GET", "/v1/models/{id}", "/v1/models/emoji"));
  expect(200,
         ask("POST", "/sdapi/v1/options", "/sdapi/v1/options", {{"sd_model_checkpoint", "emoji"}}));
  for (const char* path : {"/sdapi/v1/interrupt", "/sdapi/v1/skip", "/sdapi/v1/refresh-loras",
                           "/sdapi/v1/refresh-checkpoints"}) {
    expect(200, ask("POST", path, path));
  }
  expect(401, ask("POST", "/api/login", "/api/login", {{"key", "no such key"}}));
  expect(204, ask("POST", "/api/logout", "/api/logout"));

  const std::string lora_path = "/api/loras/{name}", lora = "/api/loras/some";
  expect(201, ask("PUT", lora_path, lora, nullptr, test::some_lora()));
  expect(200, ask("PUT", lora_path, lora + "?replace=true", nullptr, test::some_lora()));
  expect(409, ask("PUT", lora_path, lora, nullptr, test::some_lora()));
  expect(200, ask("GET", "/api/loras", "/api/loras"));
  expect(204, ask("DELETE", lora_path, lora));

  const std::string set = "/api/datasets/set", file = set + "/files/a.png";
  const std::string set_path = "/api/datasets/{name}", file_path = set_path + "/files/{file}";
  expect(201, ask("POST", "/api/datasets", "/api/datasets", {{"name", "set"}}));
  expect(201, ask("PUT", file_path, file, nullptr, some_png()));
  expect(204, ask("PUT", file_path, file, nullptr, some_png()));
  expect(200, ask("GET", file_path, file));
  expect(200, ask("GET", set_path, set));
  expect(200, ask("GET", "/api/datasets", "/api/datasets"));

  // Behind what occupies the worker for long work, these wait until they are cancelled.
  const std::string training = submit("/api/train", test::small_training("one", 2000));
  const auto train = test::small_training("two", 2);
  const auto taken = [&](const std::string& path, const json& body) {
    const HttpReply reply = ask("POST", path, path, body);
    expect(202, reply);
    const std::string id = reply.json().value("id", "");
    EXPECT_EQ(reply.header("location"), "/api/jobs/" + id);
    return id;
  };
  const std::string job_path = "/api/jobs/{id}";
  for (const std::string& id :
       {taken("/api/train", train), taken("/api/quantize", {{"name", "q"}, {"format", "fp8"}}),
        taken("/api/compare", json::object()), training}) {
    expect(202, ask("POST", job_path + "/cancel", "/api/jobs/" + id + "/cancel"));
    ended(id);
  }
  expect(409, ask("POST", job_path + "/resume",
                  "/api/jobs/" +
                      taken("/api/generate", {{"prompt", "x"}, {"size", "32x32"}, {"steps", 1}}) +
                      "/resume"));
  const std::string id = submit_picture();
  expect(200, ask("GET", job_path + "/events", "/api/jobs/" + id + "/events"));
  expect(200, ask("GET", job_path, "/api/jobs/" + id));
  expect(200, ask("GET", job_path + "/files/{name}", "/api/jobs/" + id + "/files/1.png"));
  expect(404, ask("GET", job_path + "/preview", "/api/jobs/" + id + "/preview"));
  expect(200, ask("GET", "/api/jobs", "/api/jobs?limit=2&state=done"));
  expect(204, ask("DELETE", job_path, "/api/jobs/" + id));
  test::EventReader all(server_->port(), "/api/events?after=0");
  EXPECT_TRUE(all.next().has_value());
  asked_.insert("GET /api/events");

  const json small = {{"prompt", "x"}, {"size", "32x32"}, {"steps", 1}};
  expect(200, ask("POST", "/v1/images/generations", "/v1/images/generations", small));
  expect(200, ask("POST", "/sdapi/v1/txt2img", "/sdapi/v1/txt2img",
                  {{"prompt", "x"}, {"width", 32}, {"height", 32}, {"steps", 1}}));
  expect(204, ask("DELETE", file_path, file));
  expect(204, ask("DELETE", set_path, set));

  for (const auto& [path, methods] : document_["paths"].items()) {
    for (const auto& [method, unused] : methods.items()) {
      std::string name = method;
      for (char& c : name) c = static_cast<char>(std::toupper(c));
      EXPECT_TRUE(asked_.contains(name + " " + path)) << "no test asks for " << name << " " << path;
    }
  }
}

// Values that a field of this schema does not take.
std::vector<json> bad_values(const json& schema) {
  const std::string type = schema["type"];
  std::vector<json> bad = {json::object()};
  if (type != "string") bad.push_back("text");
  if (type != "array") bad.push_back(json::array());
  if (type != "boolean") bad.push_back(true);
  if (type == "string") {
    bad.push_back(5);
    bad.push_back(std::string("a\0b", 3));
    bad.push_back(std::string(schema["maxLength"].get<size_t>() + 1, 'x'));
    if (schema.contains("enum")) bad.push_back("none of these");
  }
  if (type == "integer") {
    bad.push_back(1.5);
    bad.push_back(schema["minimum"].get<int64_t>() - 1);
    bad.push_back(schema["maximum"].get<int64_t>() + 1);
    bad.push_back(uint64_t{1} << 63);
  }
  if (type == "number") {
    bad.push_back(schema["minimum"].get<double>() - 1);
    bad.push_back(schema["maximum"].get<double>() * 2);
    bad.push_back(-1e300);
  }
  if (type == "array") {
    bad.push_back(json::array({nullptr}));
    bad.push_back(json::array({5}));
    bad.push_back(json(schema["maxItems"].get<size_t>() + 1, "x"));
  }
  return bad;
}

TEST_F(ApiRoutes, EveryFieldThatIsWrongIsNamed) {
  make_dataset("set", 1);
  const std::map<std::string, json> good = {{"/api/generate", {{"prompt", "x"}}},
                                            {"/api/train", {{"dataset", "set"}, {"name", "n"}}},
                                            {"/api/quantize", {{"name", "n"}, {"format", "fp8"}}},
                                            {"/api/compare", json::object()},
                                            {"/api/datasets", {{"name", "n"}}},
                                            {"/api/login", {{"key", "k"}}}};
  int fields = 0;
  for (const auto& [path, body] : good) {
    const json schema =
        document_["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
    for (const auto& [name, field] : schema["properties"].items()) {
      ++fields;
      for (const json& bad : bad_values(field)) {
        SCOPED_TRACE(path + " " + name + " " + bad.dump().substr(0, 60));
        json wrong = body;
        wrong[name] = bad;
        const HttpReply reply = post(path, wrong);
        EXPECT_EQ(reply.status, 400) << reply.body;
        const std::string named = reply.json()["error"].value("field", "");
        EXPECT_TRUE(named == name || named.starts_with(name + "[")) << named;
      }
    }
    for (const json& name : schema.value("required", json::array())) {
      json without = body;
      without.erase(name.get<std::string>());
      EXPECT_THAT(post(path, without), IsError(400, "invalid", name.get<std::string>()));
      without[name.get<std::string>()] = nullptr;
      EXPECT_THAT(post(path, without), IsError(400, "invalid", name.get<std::string>()));
    }
    json more = body;
    more["unheard_of"] = 1;
    EXPECT_THAT(post(path, more), IsError(400, "invalid", "unheard_of"));
    EXPECT_THAT(post(path, json::array()), IsError(400, "invalid", ""));
  }
  EXPECT_GT(fields, 60);
  EXPECT_EQ(get("/api/jobs").json()["jobs"].size(), 0u) << "something was taken";
}

TEST_F(ApiRoutes, WhatDoesNotGoTogetherIsNamed) {
  make_dataset("set", 1);
  const auto generate = [&](json more) {
    json body = {{"prompt", "x"}};
    body.update(more);
    return post("/api/generate", body);
  };
  for (const char* size : {"32x", "32X32", "0x32", "-32x32", "33x32", "x", "32x32x32", "1e2x32",
                           "999999x999999", "65536x65536"}) {
    const HttpReply reply = generate({{"size", size}});
    EXPECT_EQ(reply.status, 400) << size;
    EXPECT_THAT(reply.json()["error"].value("field", ""), testing::AnyOf("size", "width")) << size;
  }
  EXPECT_THAT(generate({{"model", "../emoji"}}), IsError(400, "invalid", "model"));
  EXPECT_THAT(generate({{"scheduler", "none such"}}), IsError(400, "invalid", "scheduler"));
  EXPECT_THAT(generate({{"negative", "y"}, {"guidance", 0}}), IsError(400, "invalid", "negative"));
  EXPECT_THAT(generate({{"crop", "x"}}), IsError(400, "invalid", "crop"));
  EXPECT_THAT(generate({{"crop", "8,8"}}), IsError(400, "invalid", "crop"));  // not of this family
  EXPECT_THAT(generate({{"original_size", "0x8"}}), IsError(400, "invalid", "original_size"));
  EXPECT_THAT(generate({{"loras", {{{"name", "../x"}}}}}), IsError(400, "invalid", "loras"));
  EXPECT_THAT(generate({{"loras", {{{"name", "x"}, {"strength", 11}}}}}),
              IsError(400, "invalid", "loras[0].strength"));
  std::string long_prompt;
  for (int i = 0; i < 2000; ++i) long_prompt += "cat ";
  EXPECT_THAT(generate({{"prompt", long_prompt}}), IsError(400, "invalid", "prompt"));

  const auto train = [&](json more) {
    json body = test::small_training("n", 2);
    body.update(more);
    return post("/api/train", body);
  };
  EXPECT_THAT(train({{"dataset", "none"}}), IsError(404, "not_found", "dataset"));
  for (const char* name : {"", "..", ".x", "a/b", " a", "a\nb", "a\\b"}) {
    EXPECT_THAT(train({{"name", name}}), IsError(400, "invalid", "name")) << name;
  }
  EXPECT_THAT(train({{"mode", "qat"}}), IsError(400, "invalid", "precision"));
  EXPECT_THAT(train({{"mode", "full"}, {"dropout", 0.5}}), IsError(400, "invalid", "dropout"));
  EXPECT_THAT(train({{"sample_prompts", {"x"}}}), IsError(400, "invalid", "sample_prompts"));
  EXPECT_THAT(train({{"resolution", 8}}), IsError(400, "invalid", "resolution"));
  EXPECT_THAT(post("/api/compare", {{"precisions", {"fp99"}}}),
              IsError(400, "invalid", "precisions"));
  EXPECT_THAT(post("/api/compare", {{"precisions", json::array()}}),
              IsError(400, "invalid", "precisions"));
  EXPECT_EQ(get("/api/jobs").json()["jobs"].size(), 0u) << "something was taken";
}

}  // namespace
}  // namespace halftone
