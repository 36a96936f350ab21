// The part of OpenAI's API that makes pictures, as its clients speak it. What this server has
// beyond that (steps, seed, negative_prompt, guidance, precision, loras) may be sent as well.
#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/server/api.h"

namespace halftone {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// What its clients send and what has no meaning here: taken, and said in the answer.
constexpr const char* kIgnored[] = {"quality",    "style",          "user",
                                    "background", "moderation",     "output_compression",
                                    "stream",     "partial_images", "output_format"};

// Fields of theirs, and what they are called in the native API.
constexpr std::pair<const char*, const char*> kNames[] = {{"prompt", "prompt"},
                                                          {"model", "model"},
                                                          {"n", "count"},
                                                          {"steps", "steps"},
                                                          {"seed", "seed"},
                                                          {"guidance", "guidance"},
                                                          {"guidance_scale", "guidance"},
                                                          {"negative_prompt", "negative"},
                                                          {"precision", "precision"},
                                                          {"scheduler", "scheduler"},
                                                          {"loras", "loras"}};

ordered_json model_json(const ModelOnShelf& model) {
  return {{"id", model.id}, {"object", "model"}, {"created", 0}, {"owned_by", "halftone"}};
}

// What a field is called here.
std::string param_of(const std::string& field, const json& body) {
  for (const auto& [theirs, ours] : kNames) {
    if (field == ours && body.is_object() && body.contains(theirs)) return theirs;
  }
  return field;
}

// Its clients read errors in this shape.
HttpResponse openai_error(const ApiError& error) {
  ordered_json body = {{"message", error.message},
                       {"type", error.status < 500 ? "invalid_request_error" : "server_error"},
                       {"param", nullptr},
                       {"code", error.code}};
  if (!error.field.empty()) body["param"] = error.field;
  HttpResponse response = json_response({{"error", body}}, error.status);
  if (error.retry_after > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  }
  return response;
}

struct Asked {
  json generate;       // a body of the native API
  std::string format;  // b64_json, url, or empty: both
  std::vector<std::string> ignored;
};

Asked read_request(const json& body) {
  if (!body.is_object()) throw invalid("", "the body is no object");
  Asked asked;
  asked.generate = json::object();
  const auto copy = [&](const char* from, const char* to) {
    if (body.contains(from) && !body[from].is_null()) asked.generate[to] = body[from];
  };
  for (const auto& [theirs, ours] : kNames) copy(theirs, ours);
  if (body.contains("size") && body["size"] != "auto") copy("size", "size");
  asked.generate["previews"] = false;
  if (body.contains("response_format") && !body["response_format"].is_null()) {
    const bool known = body["response_format"] == "b64_json" || body["response_format"] == "url";
    if (!known) throw invalid("response_format", "is neither b64_json nor url");
    asked.format = body["response_format"];
  }
  if (body.value("stream", json(false)) == json(true)) {
    throw invalid("stream", "pictures are not streamed: POST /api/generate has events");
  }
  if (body.contains("output_format") && body["output_format"] != "png") {
    throw invalid("output_format", "pictures are png");
  }
  for (const auto& [name, value] : body.items()) {
    for (const char* ignored : kIgnored) {
      if (name == ignored) asked.ignored.push_back(name);
    }
  }
  static constexpr const char* kOthers[] = {"size", "response_format"};
  for (const auto& [name, value] : body.items()) {
    bool known = false;
    for (const char* one : kOthers) known |= name == one;
    for (const auto& [theirs, ours] : kNames) known |= name == theirs;
    for (const std::string& one : asked.ignored) known |= name == one;
    if (!known) throw invalid(printable(name), "is not known here");
  }
  return asked;
}

HttpResponse pictures(ApiContext& api, const StoredJob& job, const Asked& asked,
                      const std::string& host) {
  if (job.state != JobState::kDone) {
    const json error = json::parse(job.error, nullptr, false);
    if (!error.is_object()) return openai_error({503, "cancelled", "", "the job was cancelled"});
    return openai_error({500, error.value("code", "internal"), error.value("field", ""),
                         error.value("message", "the job has failed")});
  }
  ordered_json out = {{"created", static_cast<int64_t>(job.finished)}};
  out["data"] = ordered_json::array();
  int index = 0;
  for (const std::string& png : pictures_of(api, job.id)) {
    ordered_json one = ordered_json::object();
    ++index;
    if (asked.format != "url") one["b64_json"] = base64(png);
    if (asked.format != "b64_json") {
      one["url"] = fmt::format("http://{}/api/jobs/{}/files/{}.png", host, job.id, index);
    }
    out["data"].push_back(std::move(one));
  }
  out["output_format"] = "png";
  if (!asked.ignored.empty()) out["ignored"] = asked.ignored;
  return json_response(out);
}

void generate(ApiContext& api, const ApiCall& call, const std::shared_ptr<HttpExchange>& exchange) {
  try {
    const Asked asked = read_request(call.body);
    const StoredJob job =
        submit(api, generate_job(api.schemas, api.limits, api.shelf, asked.generate), call.owner);
    const std::string host = call.request.header("host");
    reply_when_ended(api, job.id, exchange, [&api, asked, host](const StoredJob& ended) {
      return pictures(api, ended, asked, host);
    });
  } catch (ApiError& error) {
    error.field = param_of(error.field, call.body);
    exchange->reply(openai_error(error));
  } catch (const Error& error) {
    ApiError told = api_error(error);
    told.field = param_of(told.field, call.body);
    exchange->reply(openai_error(told));
  }
}

}  // namespace

void add_openai_routes(Router& router, ApiContext& api) {
  static const ObjectSchema kAny = {"OpenAiImages", "As OpenAI's clients send it", {}};
  router.add(
      {.method = "POST",
       .pattern = "/v1/images/generations",
       .summary = "Makes pictures, and answers when they are there",
       .body = &kAny,
       .result = "OpenAiImages",
       .answer_later = [&api](const ApiCall& call, const std::shared_ptr<HttpExchange>& exchange) {
         generate(api, call, exchange);
       }});
  router.add({.method = "GET",
              .pattern = "/v1/models",
              .summary = "Models that can be asked for",
              .result = "OpenAiModels",
              .answer = [&api](const ApiCall&) {
                ordered_json models = ordered_json::array();
                for (const auto& model : api.shelf.models()) {
                  if (model->parts != nullptr) models.push_back(model_json(*model));
                }
                return json_response({{"object", "list"}, {"data", models}});
              }});
  router.add({.method = "GET",
              .pattern = "/v1/models/{id}",
              .summary = "One of them",
              .result = "OpenAiModel",
              .answer = [&api](const ApiCall& call) {
                try {
                  return json_response(model_json(*api.shelf.model(call.path.at("id"))));
                } catch (const ApiError& error) {
                  return openai_error({404, "model_not_found", "model", error.message});
                }
              }});
}

}  // namespace halftone
