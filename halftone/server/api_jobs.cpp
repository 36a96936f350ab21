// Jobs: listed, looked at, watched, cancelled, resumed, removed, and their results.
#include <algorithm>
#include <charconv>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/server/api.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

ordered_json parsed(const std::string& text, const ordered_json& fallback) {
  if (text.empty()) return fallback;
  ordered_json value = ordered_json::parse(text, nullptr, false);
  return value.is_discarded() ? fallback : value;
}

ordered_json time_json(double time) {
  return time > 0 ? ordered_json(time) : ordered_json(nullptr);
}

HttpResponse list_jobs(ApiContext& api, const ApiCall& call) {
  JobFilter filter;
  const auto& query = call.request.query;
  if (const auto kind = query.find("kind"); kind != query.end() && !kind->second.empty()) {
    filter.kind = kind->second;
    static constexpr const char* kKinds[] = {"generate", "train", "quantize", "compare"};
    if (std::ranges::count(kKinds, filter.kind) == 0) {
      throw invalid("kind", fmt::format("'{}' is none", printable(filter.kind)));
    }
  }
  if (const auto state = query.find("state"); state != query.end() && !state->second.empty()) {
    filter.state = parse_job_state(state->second);
    if (!filter.state)
      throw invalid("state", fmt::format("'{}' is none", printable(state->second)));
  }
  if (const auto before = query.find("before"); before != query.end()) {
    filter.before = before->second;
  }
  filter.limit = static_cast<int>(call.number("limit", 50, 1, 200));
  const std::vector<StoredJob> jobs = api.store.list(filter);
  ordered_json out = {{"jobs", ordered_json::array()}, {"next", nullptr}};
  for (const StoredJob& job : jobs) out["jobs"].push_back(job_json(api, job));
  if (static_cast<int>(jobs.size()) == filter.limit) out["next"] = jobs.back().id;
  return json_response(out);
}

// Where it lies on this machine, if it does.
std::optional<fs::path> file_here(const ApiContext& api, const StoredFile& file) {
  if (file.path.empty()) return std::nullopt;
  std::error_code error;
  const fs::path real = fs::canonical(api.folders.root / file.path, error);
  if (error) return std::nullopt;
  const fs::path below = real.lexically_relative(fs::canonical(api.folders.root, error));
  if (error || below.empty() || *below.begin() == ".." || !fs::is_regular_file(real, error)) {
    return std::nullopt;
  }
  return real;
}

HttpResponse job_file(ApiContext& api, const ApiCall& call) {
  const StoredJob job = find_job(api, call.path.at("id"));
  const std::vector<StoredFile> files = api.store.files(job.id);
  const auto file = std::ranges::find(files, call.path.at("name"), &StoredFile::name);
  if (file == files.end()) throw not_found("this job has no such file");
  HttpResponse response;
  response.type = file->type;
  // Results do not change under their names once a job has ended; pages run where nothing is ours.
  response.headers.emplace_back("Cache-Control", "private, max-age=3600");
  if (file->type.starts_with("text/html")) {
    response.headers.emplace_back(
        "Content-Security-Policy",
        "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'");
  }
  if (file->type == "application/octet-stream") {
    response.headers.emplace_back("Content-Disposition",
                                  fmt::format("attachment; filename=\"{}\"", file->name));
  }
  if (const auto place = file_here(api, *file)) {
    response.file = place->string();
    return response;
  }
  std::optional<StoredFile> stored = api.store.file(job.id, file->name);
  if (stored && static_cast<int64_t>(stored->bytes.size()) == stored->size) {
    response.body = std::move(stored->bytes);
    return response;
  }
  if (!api.store.is_shared()) throw not_found("this file is not there any more");
  throw not_found(
      fmt::format("it is too large for the database ({}), and not in the data folder of this "
                  "server: ask the one that made it, or give all of them the same folder",
                  human_bytes(file->size)));
}

HttpResponse events_of(ApiContext& api, const ApiCall& call, const std::string& job) {
  const std::string last = call.request.header("last-event-id");
  int64_t after = job.empty() ? api.hub.last() : 0;
  constexpr int64_t kMost = int64_t{1} << 53;
  after = call.number("after", after, 0, kMost);
  if (!last.empty()) {
    const auto [end, error] = std::from_chars(last.data(), last.data() + last.size(), after);
    if (error != std::errc() || end != last.data() + last.size() || after < 0) {
      throw invalid("Last-Event-ID", "is not one of ours");
    }
  }
  // Of another store, which had come further: from the beginning of a job, or from now on.
  if (after > api.hub.last()) {
    after = job.empty() ? api.hub.last() : 0;
  }
  HttpResponse response;
  if (!job.empty() && has_ended(find_job(api, job).state) && api.hub.after(after, job, 1).empty()) {
    response.status = 204;  // browsers come back after the end, and shall not
    return response;
  }
  response.type = "text/event-stream";
  response.headers.emplace_back("Cache-Control", "no-store");
  response.headers.emplace_back("X-Accel-Buffering", "no");
  response.stream = std::make_shared<EventStream>(api.hub, job, after);
  return response;
}

}  // namespace

StoredJob find_job(ApiContext& api, const std::string& id) {
  std::optional<StoredJob> job = api.store.find(id);
  if (!job) throw not_found(fmt::format("there is no job '{}'", printable(id)));
  return *job;
}

ordered_json job_json(ApiContext& api, const StoredJob& job) {
  ordered_json out = {{"id", job.id}, {"kind", job.kind}, {"state", to_string(job.state)}};
  ordered_json request = parsed(job.request, ordered_json::object());
  out["model"] = request.is_object() ? request.value("model", "") : "";
  out["created"] = job.created;
  out["started"] = time_json(job.started);
  out["finished"] = time_json(job.finished);
  out["position"] = nullptr;
  if (job.state == JobState::kQueued) out["position"] = api.store.place(job);
  out["cancelling"] = job.cancelling && !has_ended(job.state);
  out["can_resume"] = job.resume && has_ended(job.state) && job.state != JobState::kDone;
  out["owner"] = job.owner;
  out["priority"] = job.priority;
  out["request"] = std::move(request);
  out["progress"] = has_ended(job.state) && job.kind != "train" ? ordered_json(nullptr)
                                                                : parsed(job.progress, nullptr);
  out["results"] = ordered_json::array();
  for (const StoredFile& file : api.store.files(job.id)) {
    ordered_json result = {{"name", file.name}, {"type", file.type}};
    const ordered_json details = parsed(file.details, ordered_json::object());
    if (details.is_object()) result.update(details);
    result["url"] = fmt::format("/api/jobs/{}/files/{}", job.id, file.name);
    result["bytes"] = file.size;
    out["results"].push_back(std::move(result));
  }
  out["summary"] = parsed(job.summary, ordered_json::object());
  out["error"] = job.state == JobState::kFailed ? parsed(job.error, nullptr) : nullptr;
  return out;
}

StoredJob submit(ApiContext& api, NewJob job, const std::string& owner) {
  if (api.stopping) {
    ApiError error(503, "stopping", "", "the server is about to end");
    error.retry_after = 10;
    throw error;
  }
  job.owner = owner;
  const std::string kind = job.kind;
  const std::optional<StoredJob> stored = api.store.submit(job, api.limits.most_queued);
  if (!stored) {
    api.metrics.add("halftone_jobs_refused_total");
    ApiError error(429, "busy", "",
                   fmt::format("{} jobs are waiting already", api.limits.most_queued));
    error.retry_after = 1;
    throw error;
  }
  api.metrics.add(fmt::format("halftone_jobs_submitted_total{{kind=\"{}\"}}", kind));
  api.wake_workers();
  return *stored;
}

void reply_when_ended(ApiContext& api, const std::string& id,
                      const std::shared_ptr<HttpExchange>& exchange,
                      std::function<HttpResponse(const StoredJob&)> make) {
  const auto reply = [&api, id, exchange, make = std::move(make)] {
    try {
      const StoredJob job = find_job(api, id);
      if (!has_ended(job.state)) {  // the server stops, and has given it back
        ApiError stopping(503, "stopping", "", "the server is about to end; the job goes on later");
        stopping.retry_after = 10;
        throw stopping;
      }
      exchange->reply(make(job));
    } catch (const ApiError& error) {
      exchange->reply(error_response(error));
    } catch (const Error& error) {
      exchange->reply(error_response(api_error(error)));
    }
  };
  const int64_t waiter = api.hub.when_ended(id, reply);
  exchange->on_gone([&api, id, waiter] {
    api.hub.forget(waiter);
    try {
      api.store.cancel(id);
      api.cancel_soon(id);
    } catch (const Error&) {  // it will be made for no one
    }
  });
  if (has_ended(find_job(api, id).state)) {  // before anyone waited
    api.hub.forget(waiter);
    reply();
  }
}

std::vector<std::string> pictures_of(ApiContext& api, const std::string& job) {
  std::vector<std::string> pictures;
  for (int i = 1;; ++i) {
    auto file = api.store.file(job, fmt::format("{}.png", i));
    if (!file) return pictures;
    pictures.push_back(std::move(file->bytes));
  }
}

void add_job_routes(Router& router, ApiContext& api) {
  router.add({.method = "GET",
              .pattern = "/api/jobs",
              .summary = "Jobs, the newest first",
              .result = "JobList",
              .query = {"kind", "state", "before", "limit"},
              .answer = [&api](const ApiCall& call) { return list_jobs(api, call); }});
  router.add({.method = "GET",
              .pattern = "/api/jobs/{id}",
              .summary = "A job: how far it is, and what it has made",
              .result = "Job",
              .answer = [&api](const ApiCall& call) {
                return json_response(job_json(api, find_job(api, call.path.at("id"))));
              }});
  router.add({.method = "DELETE",
              .pattern = "/api/jobs/{id}",
              .summary = "Forgets a job that has ended, and its results",
              .status = 204,
              .answer = [&api](const ApiCall& call) {
                const StoredJob job = find_job(api, call.path.at("id"));
                if (!api.store.remove(job.id)) {
                  throw ApiError(409, "conflict", "", "the job has not ended: cancel it first");
                }
                api.previews.remove(job.id);
                std::error_code ignored;
                fs::remove_all(api.folders.run(job.id), ignored);
                HttpResponse response;
                response.status = 204;
                return response;
              }});
  router.add({.method = "POST",
              .pattern = "/api/jobs/{id}/cancel",
              .summary = "Ends a job; training keeps a checkpoint",
              .result = "Job",
              .status = 202,
              .answer = [&api](const ApiCall& call) {
                const auto job = api.store.cancel(find_job(api, call.path.at("id")).id);
                if (!job) throw not_found("there is no such job");
                api.cancel_soon(job->id);
                return json_response(job_json(api, *job), 202);
              }});
  router.add({.method = "POST",
              .pattern = "/api/jobs/{id}/resume",
              .summary = "Goes on with a training that was stopped or has failed",
              .result = "Job",
              .status = 202,
              .answer = [&api](const ApiCall& call) {
                const StoredJob job = find_job(api, call.path.at("id"));
                if (!api.store.resume(job.id)) {
                  throw ApiError(409, "conflict", "",
                                 "there is nothing to go on from, or it has not ended");
                }
                api.wake_workers();
                return json_response(job_json(api, find_job(api, job.id)), 202);
              }});
  router.add({.method = "GET",
              .pattern = "/api/jobs/{id}/events",
              .summary = "What happens to a job, as server-sent events",
              .result = "text/event-stream",
              .query = {"after"},
              .answer = [&api](const ApiCall& call) {
                return events_of(api, call, find_job(api, call.path.at("id")).id);
              }});
  router.add({.method = "GET",
              .pattern = "/api/events",
              .summary = "What happens to all jobs, as server-sent events",
              .result = "text/event-stream",
              .query = {"after"},
              .answer = [&api](const ApiCall& call) { return events_of(api, call, ""); }});
  router.add({.method = "GET",
              .pattern = "/api/jobs/{id}/preview",
              .summary = "What a picture will look like, as far as it is",
              .result = "image/png",
              .query = {"step"},
              .answer = [&api](const ApiCall& call) {
                const auto png = api.previews.find(call.path.at("id"));
                if (png == nullptr) throw not_found("there is no preview");
                HttpResponse response;
                response.type = "image/png";
                response.headers.emplace_back("Cache-Control", "no-store");
                response.body = *png;
                return response;
              }});
  router.add({.method = "GET",
              .pattern = "/api/jobs/{id}/files/{name}",
              .summary = "A result",
              .result = "application/octet-stream",
              .answer = [&api](const ApiCall& call) { return job_file(api, call); }});
}

}  // namespace halftone
