// What is told of pictures in the making: how far they are, what has become of them, and the end.
#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/engine/picture_text.h"
#include "halftone/io/png.h"
#include "halftone/server/api_error.h"
#include "halftone/server/clock.h"
#include "halftone/server/generate_worker.h"
#include "halftone/server/long_job.h"

namespace halftone {
namespace {

using nlohmann::ordered_json;

}  // namespace

void GenerateWorker::finish_picture(GenerateLane& lane, const PictureRow& row) {
  const JobPtr job = row.owner;
  if (job->lane == nullptr) return;  // it has ended
  try {
    const double start = steady_seconds();
    const Tensor image = lane.picture(row);
    with_.metrics.add("halftone_decode_seconds_total", steady_seconds() - start);
    with_.metrics.add("halftone_pictures_total");
    StoredFile file;
    file.name = fmt::format("{}.png", row.index + 1);
    file.type = "image/png";
    file.bytes = encode_png(
        image, told_picture_text(picture_text(lane.loaded(), job->asked, lane.hash(), row.index),
                                 job->asked, row.job.reused()));
    file.size = static_cast<int64_t>(file.bytes.size());
    ordered_json details = {{"media", "image"},
                            {"width", image.shape()[2]},
                            {"height", image.shape()[1]},
                            {"seed", job->asked.seed + static_cast<uint64_t>(row.index)}};
    if (job->asked.cache > 0) details["reused_steps"] = row.job.reused();
    file.details = dump(details);
    ordered_json result = {{"name", file.name}, {"type", file.type}};
    result.update(details);
    result["url"] = fmt::format("/api/jobs/{}/files/{}", job->stored.id, file.name);
    result["bytes"] = file.size;
    JobChange change;
    change.job = job->stored.id;
    change.files.push_back(std::move(file));
    change.events.emplace_back("result",
                               dump(ordered_json{{"job", job->stored.id}, {"result", result}}));
    ++job->ended;
    if (job->ended < job->asked.count) return apply(std::move(change));
    const std::vector<std::string> fallbacks = run_fallbacks(lane.loaded(), lane.pipeline());
    std::vector<std::string> all = lane.loaded().fallbacks;
    all.insert(all.end(), fallbacks.begin(), fallbacks.end());
    job->summary = {{"precision", choice_json(lane.loaded().precision)},
                    {"device", choice_json(lane.loaded().device)},
                    {"seconds", steady_seconds() - job->started},
                    {"fallbacks", all}};
    for (const std::string& line : all) {
      change.events.emplace_back("fallback",
                                 dump(ordered_json{{"job", job->stored.id}, {"message", line}}));
    }
    apply(std::move(change));
    finish(job, JobState::kDone);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) return;  // it is ended next, or given back
    fail(job, error);
  }
}

void GenerateWorker::show_preview(GenerateLane& lane, const PictureRow& row) {
  try {
    const JobPtr& job = row.owner;
    with_.previews.put(job->stored.id, encode_png(lane.preview(row)));
    JobChange change;
    change.job = job->stored.id;
    change.events.emplace_back(
        "preview",
        dump(ordered_json{{"job", job->stored.id},
                          {"step", row.job.step()},
                          {"index", row.index},
                          {"url", fmt::format("/api/jobs/{}/preview?step={}-{}", job->stored.id,
                                              row.index, row.job.step())}}));
    apply(std::move(change));
  } catch (const Error&) {  // only a preview
  }
}

void GenerateWorker::tell_progress(const JobPtr& job, const char* stage, bool now) {
  const double time = steady_seconds();
  if (!now && time - job->progress_told < options_.progress_every) return;
  job->progress_told = time;
  ordered_json progress = {{"stage", stage}, {"done", job->steps_done}, {"total", job->steps()}};
  const double taken = time - job->started;
  progress["seconds_left"] = nullptr;
  if (job->steps_done > 0) {
    progress["seconds_left"] = taken / static_cast<double>(job->steps_done) *
                               static_cast<double>(job->steps() - job->steps_done);
  }
  JobChange change;
  change.job = job->stored.id;
  change.progress = dump(progress);
  ordered_json event = {{"job", job->stored.id}};
  event.update(progress);
  change.events.emplace_back("progress", dump(event));
  apply(std::move(change));
}

void GenerateWorker::finish(const JobPtr& job, JobState state, const std::string& error) {
  if (job->lane != nullptr) {
    job->lane->rows().remove_if([&](const PictureRow& row) { return row.owner == job; });
  }
  {
    const std::scoped_lock lock(mutex_);
    if (job->lane != nullptr) {
      if (!job->cancelled) job->lane->want(-1);
      --job->lane->users;
    }
    job->lane = nullptr;
    jobs_.remove(job);
  }
  for (auto* jobs : {&loading_, &waiting_}) std::erase(*jobs, job);
  with_.previews.end(job->stored.id);
  JobChange change;
  change.job = job->stored.id;
  change.state = state;
  change.error = error;
  if (state == JobState::kDone) change.summary = dump(job->summary);
  apply(std::move(change));
  with_.metrics.add(
      fmt::format("halftone_jobs_total{{kind=\"generate\",state=\"{}\"}}", to_string(state)));
  with_.log.info("job ended", {{"job", job->stored.id},
                               {"kind", "generate"},
                               {"state", to_string(state)},
                               {"model", job->stored.model},
                               {"seconds", steady_seconds() - job->started},
                               {"error", error}});
  changed_.notify_all();
}

void GenerateWorker::fail(const JobPtr& job, const Error& error) {
  finish(job, JobState::kFailed, dump(error_json(api_error(error))["error"]));
}

void GenerateWorker::fail_lane(const GenerateLane& lane, const Error& error) {
  for (const JobPtr& job : std::list<JobPtr>(jobs_)) {
    if (job->lane == &lane) fail(job, error);
  }
}

void GenerateWorker::give_back_all() {
  for (const JobPtr& job : std::list<JobPtr>(jobs_)) {
    JobChange change;
    change.job = job->stored.id;
    change.state = JobState::kQueued;
    change.progress = "";
    apply(std::move(change));  // where it cannot be said, its lease will run out
    with_.previews.remove(job->stored.id);
    const std::scoped_lock lock(mutex_);
    jobs_.remove(job);
  }
}

void GenerateWorker::apply(JobChange change) { cancel(outbox_.put(std::move(change))); }

}  // namespace halftone
