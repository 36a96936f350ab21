// What the server has, and work to ask for.
#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/version.h"
#include "halftone/runtime/devices.h"
#include "halftone/server/api.h"
#include "halftone/server/clock.h"

namespace halftone {
namespace {

using nlohmann::ordered_json;

ordered_json device_json(const std::string& name, const std::string& title, const char* kind,
                         const DeviceInfo& device) {
  ordered_json out = {{"name", name}, {"title", title}, {"kind", kind}};
  out["formats"] = ordered_json::array();
  for (const Format& format : all_formats()) {
    const FormatSupport support = format_support(device, format);
    out["formats"].push_back(
        {{"name", format.name}, {"support", to_string(support.support)}, {"why", support.why}});
  }
  return out;
}

ordered_json devices_json(const Shelf& shelf) {
  const CpuInfo cpu = cpu_info();
  ordered_json devices = ordered_json::array();
  ordered_json first = device_json("cpu", cpu.name, "cpu", cpu_device());
  first["threads"] = cpu.threads;
  first["features"] = cpu.features;
  first["kernels"] = cpu.kernels;
  first["memory"] = {{"total", cpu.memory_bytes}, {"available", available_memory()}};
  first["used"] = shelf.device().device.kind == DeviceKind::kCpu;
  devices.push_back(std::move(first));
  for (const DeviceInfo& gpu : list_gpus().gpus) {
    ordered_json out = device_json(gpu.device.str(), gpu.name, "cuda", gpu);
    out["capability"] = fmt::format("{}.{}", gpu.major, gpu.minor);
    out["memory"] = {{"total", gpu.memory_bytes}, {"available", nullptr}};
    out["used"] = shelf.device().device.str() == gpu.device.str();
    devices.push_back(std::move(out));
  }
  return devices;
}

ordered_json models_json(ApiContext& api) {
  const std::vector<std::string> loaded = api.loaded();
  ordered_json models = ordered_json::array();
  for (const auto& model : api.shelf.models()) {
    std::vector<std::string> precisions;
    for (const std::string& key : loaded) {
      if (!key.starts_with(model->id + "|")) continue;
      std::string precision = key.substr(model->id.size() + 1);
      if (precision == "auto") precision = model->automatic(api.shelf.device());
      if (std::ranges::count(precisions, precision) == 0) precisions.push_back(precision);
    }
    models.push_back(api.shelf.to_json(*model, precisions));
  }
  return models;
}

HttpResponse info(ApiContext& api) {
  ordered_json out = {{"version", version()}, {"store", api.store.name()}};
  out["uptime"] = wall_seconds() - api.started;
  out["devices"] = devices_json(api.shelf);
  out["why_no_gpu"] = list_gpus().note;
  const Store::Counts counts = api.store.counts();
  out["queue"] = {
      {"queued", counts.queued}, {"running", counts.running}, {"most", api.limits.most_queued}};
  const RequestLimits& limits = api.limits;
  out["limits"] = {{"most_pixels", limits.most_pixels},
                   {"most_steps", limits.most_steps},
                   {"most_count", limits.most_count},
                   {"most_prompt_bytes", limits.most_prompt_bytes},
                   {"most_upload_bytes", limits.most_upload_bytes},
                   {"most_lora_bytes", limits.most_lora_bytes},
                   {"most_queued", limits.most_queued}};
  out["fallbacks"] = ordered_json::array();
  if (!api.shelf.device_why().empty()) {
    out["fallbacks"].push_back(
        fmt::format("cpu instead of {}: {}", api.shelf.options().device, api.shelf.device_why()));
  }
  out["trains"] = true;
  out["needs_key"] = api.auth.needs_key();
  out["models"] = models_json(api);
  return json_response(out);
}

// Results have names: two that wait or run cannot have the same one.
void check_name_is_free(ApiContext& api, const NewJob& job) {
  const auto name = [](const std::string& request) {
    const auto parsed = nlohmann::json::parse(request, nullptr, false);
    return parsed.is_object() ? parsed.value("name", "") : "";
  };
  const std::string wanted = name(job.request);
  if (wanted.empty()) return;
  constexpr int kMost = 1000;
  for (const JobState state : {JobState::kQueued, JobState::kRunning}) {
    for (const StoredJob& other : api.store.list({job.kind, state, "", kMost})) {
      if (name(other.request) != wanted) continue;
      throw ApiError(409, "conflict", "name",
                     fmt::format("a job is about to make '{}' already", wanted));
    }
  }
}

// A job of a body, answered with 202.
template <class Make>
Route submission(ApiContext& api, const char* pattern, const char* summary,
                 const ObjectSchema& schema, Make make) {
  return {.method = "POST",
          .pattern = pattern,
          .summary = summary,
          .body = &schema,
          .result = "Job",
          .status = 202,
          .answer = [&api, make](const ApiCall& call) {
            const NewJob wanted = make(call.body);
            check_name_is_free(api, wanted);
            const StoredJob job = submit(api, wanted, call.owner);
            HttpResponse response = json_response(job_json(api, job), 202);
            response.headers.emplace_back("Location", "/api/jobs/" + job.id);
            return response;
          }};
}

HttpResponse log_in(ApiContext& api, const ApiCall& call) {
  const auto body = checked(api.schemas.login, call.body);
  const std::string session = api.auth.log_in(body["key"]);
  HttpResponse response;
  response.status = 204;
  constexpr int kMonth = 30 * 24 * 3600;
  response.headers.emplace_back("Set-Cookie",
                                fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}",
                                            Auth::kCookie, session, kMonth));
  return response;
}

HttpResponse log_out(ApiContext& api, const ApiCall& call) {
  api.auth.log_out(call.request);
  HttpResponse response;
  response.status = 204;
  response.headers.emplace_back(
      "Set-Cookie",
      fmt::format("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", Auth::kCookie));
  return response;
}

}  // namespace

void add_native_routes(Router& router, ApiContext& api) {
  router.add({.method = "GET",
              .pattern = "/api/info",
              .summary = "Devices and what they compute in, models, limits and the queue",
              .result = "Info",
              .answer = [&api](const ApiCall&) { return info(api); }});
  router.add(
      {.method = "GET",
       .pattern = "/api/models",
       .summary = "Models that can be asked for",
       .result = "ModelList",
       .answer = [&api](const ApiCall&) { return json_response({{"models", models_json(api)}}); }});
  const RequestSchemas& schemas = api.schemas;
  router.add(submission(api, "/api/generate", "Makes pictures", schemas.generate,
                        [&api](const nlohmann::json& body) {
                          return generate_job(api.schemas, api.limits, api.shelf, body);
                        }));
  router.add(submission(api, "/api/train", "Trains an adapter or a model", schemas.train,
                        [&api](const nlohmann::json& body) {
                          return train_job(api.schemas, api.shelf, api.datasets, api.folders, body);
                        }));
  router.add(submission(api, "/api/quantize", "Makes a model of 8 or 4 bits", schemas.quantize,
                        [&api](const nlohmann::json& body) {
                          return quantize_job(api.schemas, api.shelf, body, api.folders.models);
                        }));
  router.add(submission(api, "/api/compare", "Measures what precisions do to a model",
                        schemas.compare, [&api](const nlohmann::json& body) {
                          return compare_job(api.schemas, api.limits, api.shelf, body);
                        }));
  router.add({.method = "POST",
              .pattern = "/api/login",
              .summary = "A session for a browser",
              .body = &schemas.login,
              .open = true,
              .status = 204,
              .answer = [&api](const ApiCall& call) { return log_in(api, call); }});
  router.add({.method = "POST",
              .pattern = "/api/logout",
              .summary = "Ends it",
              .status = 204,
              .answer = [&api](const ApiCall& call) { return log_out(api, call); }});
}

void add_dataset_routes(Router& router, ApiContext& api) {
  const auto nothing = [](int status) {
    HttpResponse response;
    response.status = status;
    response.type = "";
    return response;
  };
  router.add({.method = "GET",
              .pattern = "/api/datasets",
              .summary = "Folders of pictures to train on",
              .result = "DatasetList",
              .answer = [&api](const ApiCall&) { return json_response(api.datasets.list()); }});
  router.add({.method = "POST",
              .pattern = "/api/datasets",
              .summary = "A new one",
              .body = &api.schemas.dataset,
              .result = "Dataset",
              .status = 201,
              .answer = [&api](const ApiCall& call) {
                const auto body = checked(api.schemas.dataset, call.body);
                api.datasets.create(body["name"]);
                return json_response(api.datasets.describe(body["name"]), 201);
              }});
  router.add({.method = "GET",
              .pattern = "/api/datasets/{name}",
              .summary = "Its pictures and captions",
              .result = "Dataset",
              .answer = [&api](const ApiCall& call) {
                return json_response(api.datasets.describe(call.path.at("name")));
              }});
  router.add({.method = "DELETE",
              .pattern = "/api/datasets/{name}",
              .summary = "Removes one that was made here, with its pictures",
              .status = 204,
              .answer = [&api, nothing](const ApiCall& call) {
                api.datasets.remove(call.path.at("name"));
                return nothing(204);
              }});
  router.add({.method = "GET",
              .pattern = "/api/datasets/{name}/files/{file...}",
              .summary = "A picture or a caption",
              .result = "application/octet-stream",
              .answer = [&api](const ApiCall& call) {
                const auto file = api.datasets.file(call.path.at("name"), call.path.at("file"));
                HttpResponse response;
                response.type = file.type;
                response.file = file.path.string();
                return response;
              }});
  router.add({.method = "PUT",
              .pattern = "/api/datasets/{name}/files/{file...}",
              .summary = "Adds or replaces a picture, or a caption (.txt)",
              .takes_bytes = true,
              .status = 201,
              .answer = [&api, nothing](const ApiCall& call) {
                const bool is_new =
                    api.datasets.put(call.path.at("name"), call.path.at("file"), call.request.body);
                return nothing(is_new ? 201 : 204);
              }});
  router.add({.method = "DELETE",
              .pattern = "/api/datasets/{name}/files/{file...}",
              .summary = "Removes a picture with its caption, or a caption",
              .status = 204,
              .answer = [&api, nothing](const ApiCall& call) {
                api.datasets.remove_file(call.path.at("name"), call.path.at("file"));
                return nothing(204);
              }});
}

}  // namespace halftone
