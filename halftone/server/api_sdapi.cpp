// What programs made for A1111's web UI ask of it, as far as it makes pictures from text. They send
// many fields that mean nothing here: what was not used is named in the answer's info.
#include "halftone/server/api.h"

#include <cmath>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/server/sdapi_names.h"

namespace halftone {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// What POST /sdapi/v1/options has chosen.
struct Chosen {
  std::mutex mutex;
  std::string model;
  std::string get() {
    const std::scoped_lock lock(mutex);
    return model;
  }
};

// "<lora:name:0.8>" in the prompt, as its users write adapters.
json take_loras(std::string& prompt) {
  json loras = json::array();
  const std::string open = "<lora:";
  for (size_t at = prompt.find(open); at != std::string::npos; at = prompt.find(open, at)) {
    const size_t end = prompt.find('>', at);
    if (end == std::string::npos) break;
    const std::string inner = prompt.substr(at + open.size(), end - at - open.size());
    const size_t colon = inner.find(':');
    double strength = 1;
    if (colon != std::string::npos) {
      char* stop = nullptr;
      strength = std::strtod(inner.c_str() + colon + 1, &stop);
      if (stop == inner.c_str() + colon + 1 || !std::isfinite(strength))
        throw invalid("prompt", "has a <lora:> without a number");
    }
    loras.push_back({{"name", inner.substr(0, colon)}, {"strength", strength}});
    prompt.erase(at, end + 1 - at);
  }
  return loras;
}

json read_request(const json& body, const std::string& chosen, std::set<std::string>& unused) {
  if (!body.is_object()) throw invalid("", "the body is no object");
  for (const auto& [name, value] : body.items()) unused.insert(name);
  json out = json::object();
  const auto take = [&](const char* name) -> json {
    unused.erase(name);
    const auto found = body.find(name);
    return found == body.end() ? json() : *found;
  };
  json prompt = take("prompt");
  if (prompt.is_string()) {
    std::string text = prompt;
    out["loras"] = take_loras(text);
    out["prompt"] = text;
  } else {
    out["prompt"] = prompt.is_null() ? json("") : prompt;
  }
  if (const json negative = take("negative_prompt"); negative.is_string() && negative != "") {
    out["negative"] = negative;
  }
  for (const char* name : {"steps", "width", "height"}) {
    if (const json value = take(name); !value.is_null()) out[name] = value;
  }
  if (const json guidance = take("cfg_scale"); !guidance.is_null()) out["guidance"] = guidance;
  const json seed = take("seed");
  if (!seed.is_null() && seed != -1) out["seed"] = seed;
  const json batch = take("batch_size"), runs = take("n_iter");
  const auto whole = [](const char* field, const json& value) {
    constexpr int64_t kMost = 1000;
    if (value.is_null()) return int64_t{1};
    if (value.is_number_integer() && value >= 1 && value <= kMost) return value.get<int64_t>();
    throw invalid(field, fmt::format("is no whole number from 1 to {}", kMost));
  };
  out["count"] = whole("batch_size", batch) * whole("n_iter", runs);
  std::string model = chosen;
  const json settings = take("override_settings");
  if (settings.is_object() && settings.contains("sd_model_checkpoint") &&
      settings["sd_model_checkpoint"].is_string()) {
    model = model_of_title(settings["sd_model_checkpoint"]);
  }
  if (!model.empty()) out["model"] = model;
  return out;
}

// The sampler that is asked for, where the model can use it.
void choose_sampler(const json& body, const ModelOnShelf& model, json& request,
                    std::set<std::string>& unused) {
  const json schedule = body.value("scheduler", json(""));
  for (const char* name : {"sampler_name", "sampler_index"}) {
    const json sampler = body.value(name, json(""));
    if (!sampler.is_string()) continue;
    unused.erase(name);
    if (sampler == "" || sampler == "Automatic") continue;
    const std::string found =
        scheduler_of_sampler(sampler, schedule.is_string() ? schedule.get<std::string>() : "",
                             model.parts->recommended.scheduler);
    if (found.empty()) unused.insert(name);
    if (!found.empty() && !request.contains("scheduler")) request["scheduler"] = found;
  }
  const std::string chosen = request.value("scheduler", "");
  if (chosen.ends_with("-karras") || schedule == "" || schedule == "Automatic") {
    unused.erase("scheduler");
  }
}

// A guidance that a distilled model has no use for is what these programs always send.
void drop_useless(const ModelOnShelf& model, json& request, std::set<std::string>& unused) {
  if (model.parts->recommended.guidance_rule != GuidanceRule::kNone) return;
  if (request.erase("guidance") > 0) unused.insert("cfg_scale");
  if (request.erase("negative") > 0) unused.insert("negative_prompt");
}

HttpResponse answer(ApiContext& api, const StoredJob& job, const json& asked,
                    const std::set<std::string>& unused) {
  if (job.state != JobState::kDone && job.state != JobState::kCancelled) {
    const json error = json::parse(job.error, nullptr, false);
    throw ApiError(500, "internal", error.is_object() ? error.value("field", "") : "",
                   error.is_object() ? error.value("message", "") : "the job has failed");
  }
  ordered_json images = ordered_json::array(), seeds = ordered_json::array();
  const json request = json::parse(job.request);
  const auto seed = request.at("seed").get<int64_t>();
  for (const std::string& png : pictures_of(api, job.id)) {
    seeds.push_back(seed + static_cast<int64_t>(images.size()));
    images.push_back(base64(png));
  }
  const std::string sampler = request.value("scheduler", "");
  const std::string negative = request.value("negative", "");
  ordered_json texts = ordered_json::array();
  for (const auto& one : seeds) {  // as they write below their pictures
    texts.push_back(
        fmt::format("{}\n{}Steps: {}, Sampler: {}, CFG scale: {}, Seed: {}, Size: {}x{}, Model: {}",
                    request.at("prompt").get<std::string>(),
                    negative.empty() ? "" : "Negative prompt: " + negative + "\n",
                    request.at("steps").dump(), sampler.empty() ? "the model's own" : sampler,
                    request.at("guidance").dump(), one.dump(), request.at("width").dump(),
                    request.at("height").dump(), request.at("model").get<std::string>()));
  }
  ordered_json info = {{"prompt", request.at("prompt")},
                       {"negative_prompt", negative},
                       {"sampler_name", sampler},
                       {"infotexts", texts},
                       {"seed", seed},
                       {"all_seeds", seeds},
                       {"width", request.at("width")},
                       {"height", request.at("height")},
                       {"steps", request.at("steps")},
                       {"cfg_scale", request.at("guidance")},
                       {"sd_model_name", request.at("model")},
                       {"unused", unused}};
  return json_response({{"images", images}, {"parameters", asked}, {"info", dump(info)}});
}

// Errors by the names that were sent.
NewJob txt2img_job(ApiContext& api, const json& request) {
  try {
    return generate_job(api.schemas, api.limits, api.shelf, request);
  } catch (ApiError& error) {
    if (error.field == "guidance") error.field = "cfg_scale";
    if (error.field == "negative") error.field = "negative_prompt";
    if (error.field == "count") error.field = "batch_size";
    if (error.field == "scheduler") error.field = "sampler_name";
    throw;
  }
}

void txt2img(ApiContext& api, Chosen& chosen, const ApiCall& call,
             const std::shared_ptr<HttpExchange>& exchange) {
  std::set<std::string> unused;
  json request = read_request(call.body, chosen.get(), unused);
  const auto model = api.shelf.model(request.value("model", ""));
  drop_useless(*model, request, unused);
  choose_sampler(call.body, *model, request, unused);
  const StoredJob job = submit(api, txt2img_job(api, request), call.owner);
  reply_when_ended(api, job.id, exchange,
                   [&api, asked = call.body, unused](const StoredJob& ended) {
                     return answer(api, ended, asked, unused);
                   });
}

// The picture that is being made, of those that are.
std::optional<StoredJob> under_way(ApiContext& api) {
  const auto jobs = api.store.list({"generate", JobState::kRunning, "", 1});
  return jobs.empty() ? std::nullopt : std::optional(jobs[0]);
}

HttpResponse progress(ApiContext& api) {
  ordered_json state = {{"job", ""},
                        {"sampling_step", 0},
                        {"sampling_steps", 0},
                        {"job_count", api.store.counts().queued}};
  ordered_json out = {{"progress", 0.0}, {"eta_relative", 0.0}};
  out["current_image"] = nullptr;
  if (const auto job = under_way(api)) {
    const json at = json::parse(job->progress, nullptr, false);
    state["job"] = job->id;
    if (at.is_object()) {
      const double done = at.value("done", 0.0), total = at.value("total", 1.0);
      state["sampling_step"] = done;
      state["sampling_steps"] = total;
      out["progress"] = total > 0 ? done / total : 0;
      if (at.contains("seconds_left") && at["seconds_left"].is_number()) {
        out["eta_relative"] = at["seconds_left"];
      }
    }
    if (const auto png = api.previews.find(job->id)) out["current_image"] = base64(*png);
  }
  out["state"] = state;
  return json_response(out);
}

}  // namespace

void add_sdapi_routes(Router& router, ApiContext& api) {
  static const ObjectSchema kAny = {"Txt2Img", "As programs for A1111's web UI send it", {}};
  const auto chosen = std::make_shared<Chosen>();
  const auto get = [&](const char* pattern, const char* summary,
                       std::function<HttpResponse(const ApiCall&)> answer) {
    router.add({.method = "GET",
                .pattern = pattern,
                .summary = summary,
                .result = "Any",
                .answer = std::move(answer)});
  };
  router.add({.method = "POST",
              .pattern = "/sdapi/v1/txt2img",
              .summary = "Makes pictures, and answers when they are there",
              .body = &kAny,
              .result = "Any",
              .answer_later = [&api, chosen](const ApiCall& call,
                                             const std::shared_ptr<HttpExchange>& exchange) {
                txt2img(api, *chosen, call, exchange);
              }});
  get("/sdapi/v1/progress", "How far the picture is that is being made",
      [&api](const ApiCall&) { return progress(api); });
  for (const char* pattern : {"/sdapi/v1/interrupt", "/sdapi/v1/skip"}) {
    router.add({.method = "POST",
                .pattern = pattern,
                .summary = "Ends the picture that is being made",
                .result = "Any",
                .answer = [&api](const ApiCall&) {
                  if (const auto job = under_way(api)) {
                    api.store.cancel(job->id);
                    api.cancel_soon(job->id);
                  }
                  return json_response(ordered_json::object());
                }});
  }
  // Lists are always those of this moment.
  for (const char* pattern : {"/sdapi/v1/refresh-checkpoints", "/sdapi/v1/refresh-loras"}) {
    router.add({.method = "POST",
                .pattern = pattern,
                .summary = "Has nothing to do here",
                .result = "Any",
                .answer = [](const ApiCall&) { return json_response(ordered_json::object()); }});
  }
  // What they ask for before anything else, and what there is none of.
  for (const char* pattern : {"/sdapi/v1/upscalers", "/sdapi/v1/sd-vae", "/sdapi/v1/prompt-styles",
                              "/sdapi/v1/hypernetworks"}) {
    get(pattern, "None", [](const ApiCall&) { return json_response(ordered_json::array()); });
  }
  get("/sdapi/v1/embeddings", "None", [](const ApiCall&) {
    return json_response({{"loaded", ordered_json::object()}, {"skipped", ordered_json::object()}});
  });
  get("/sdapi/v1/schedulers", "Schedules of sigmas", [](const ApiCall&) {
    ordered_json out = ordered_json::array();
    for (const char* name : {"Automatic", "Karras"}) {
      out.push_back({{"name", name}, {"label", name}});
    }
    return json_response(out);
  });
  get("/sdapi/v1/options", "Which model is used", [&api, chosen](const ApiCall&) {
    std::string model = chosen->get();
    if (model.empty()) model = api.shelf.model("")->id;
    return json_response({{"sd_model_checkpoint", model}});
  });
  router.add({.method = "POST",
              .pattern = "/sdapi/v1/options",
              .summary = "Chooses a model",
              .body = &kAny,
              .result = "Any",
              .answer = [&api, chosen](const ApiCall& call) {
                if (!call.body.is_object()) throw invalid("", "the body is no object");
                ordered_json out = ordered_json::object();
                for (const auto& [name, value] : call.body.items()) {
                  if (name != "sd_model_checkpoint") {
                    out["unused"].push_back(printable(name));
                    continue;
                  }
                  if (!value.is_string()) throw invalid("sd_model_checkpoint", "is no text");
                  const std::string id = api.shelf.model(model_of_title(value))->id;
                  const std::scoped_lock lock(chosen->mutex);
                  chosen->model = id;
                }
                return json_response(out);
              }});
  get("/sdapi/v1/sd-models", "Models", [&api](const ApiCall&) {
    ordered_json models = ordered_json::array();
    for (const auto& model : api.shelf.models()) {
      if (model->parts == nullptr) continue;
      models.push_back({{"title", model->id},
                        {"model_name", model->id},
                        {"hash", nullptr},
                        {"sha256", nullptr},
                        {"filename", model->id},
                        {"config", nullptr}});
    }
    return json_response(models);
  });
  get("/sdapi/v1/loras", "Adapters", [&api](const ApiCall&) {
    ordered_json loras = ordered_json::array();
    for (const auto& adapter : api.shelf.adapters()) {
      loras.push_back({{"name", adapter.name},
                       {"alias", adapter.name},
                       {"path", adapter.name},
                       {"metadata", ordered_json::object()}});
    }
    return json_response(loras);
  });
  get("/sdapi/v1/samplers", "Samplers", [](const ApiCall&) {
    ordered_json samplers = ordered_json::array();
    for (const SchedulerChoice& choice : scheduler_choices()) {
      samplers.push_back({{"name", choice.name},
                          {"aliases", ordered_json::array()},
                          {"options", ordered_json::object()}});
    }
    return json_response(samplers);
  });
}

}  // namespace halftone
