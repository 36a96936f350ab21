#include "halftone/server/generate_worker.h"

#include <algorithm>
#include <chrono>

#include "halftone/base/error.h"
#include "halftone/base/threads.h"
#include "halftone/engine/picture_text.h"
#include "halftone/io/png.h"
#include "halftone/runtime/devices.h"
#include "halftone/server/api_error.h"
#include "halftone/server/clock.h"
#include "halftone/server/long_job.h"

namespace halftone {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

}  // namespace

GenerateWorker::GenerateWorker(const With& with, GenerateWorkerOptions options)
    : with_(with), options_(options), thread_([this] { run(); }) {}

GenerateWorker::~GenerateWorker() { stop(0); }

void GenerateWorker::wake() {
  {
    const std::scoped_lock lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

void GenerateWorker::cancel(const std::vector<std::string>& ids) {
  {
    const std::scoped_lock lock(mutex_);
    for (const JobPtr& job : jobs_) {
      const bool meant = std::ranges::count(ids, job->stored.id) > 0;
      if (meant && !job->cancelled.exchange(true) && job->lane != nullptr) job->lane->want(-1);
    }
  }
  wake();
}

void GenerateWorker::stop(double seconds) {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake();
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return jobs_.empty(); });
    gives_back_ = true;
    for (const auto& [key, lane] : lanes_) lane->end();
  }
  wake();
  thread_.join();
}

std::vector<std::string> GenerateWorker::loaded() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, lane] : lanes_) keys.push_back(key);
  return keys;
}

void GenerateWorker::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const bool idle = jobs_.empty() && waiting_ == nullptr;
      if (idle && !stopping_ && !woken_) {
        changed_.wait_for(lock, std::chrono::seconds(1), [&] { return woken_ || stopping_; });
      }
      woken_ = false;
      if (gives_back_ || (stopping_ && jobs_.empty() && waiting_ == nullptr)) break;
    }
    try {
      work();
    } catch (const Error& error) {  // of the store; what is under way stays
      with_.log.warn("the store cannot be reached", {{"why", error.what()}});
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  }
  give_back_all();
  changed_.notify_all();
}

void GenerateWorker::work() {
  std::vector<JobChange> unsaved;
  std::swap(unsaved, unsaved_);
  for (JobChange& change : unsaved) apply(std::move(change));
  end_unwanted();
  bool stopping = false;
  {
    const std::scoped_lock lock(mutex_);
    stopping = stopping_;
  }
  if (!stopping && unsaved_.empty()) take_jobs();
  fill_rows();
  for (const auto& [key, lane] : lanes_) {
    if (!lane->rows().empty()) step(*lane);
  }
}

// Those that someone has cancelled, or whose time is over.
void GenerateWorker::end_unwanted() {
  const std::list<JobPtr> jobs = jobs_;
  for (const JobPtr& job : jobs) {
    if (job->cancelled) {
      finish(job, JobState::kCancelled);
    } else if (job->stored.deadline > 0 && wall_seconds() > job->stored.deadline) {
      ApiError late(504, "timeout", "timeout", "it took longer than it was given");
      finish(job, JobState::kFailed, dump(error_json(late)["error"]));
    }
  }
}

void GenerateWorker::take_jobs() {
  if (waiting_ != nullptr) {
    const JobPtr job = waiting_;
    waiting_ = nullptr;
    if (job->cancelled) return;  // ended already
    take(job);
    if (waiting_ != nullptr) return;
  }
  for (;;) {
    JobWish wish{{"generate"}, {}, {}};
    for (const auto& [key, lane] : lanes_) {
      size_t wanted = 0;
      for (const JobPtr& job : jobs_of(*lane)) {
        wanted += static_cast<size_t>(job->asked.count - job->ended);
      }
      if (wanted >= static_cast<size_t>(options_.most_rows)) wish.not_models.push_back(key);
    }
    std::optional<StoredJob> stored = with_.store.claim(wish);
    if (!stored) return;
    auto job = std::make_shared<PictureJob>();
    job->stored = std::move(*stored);
    job->request = json::parse(job->stored.request, nullptr, false);
    if (job->request.is_object()) {  // known before its model is there
      job->asked.steps = job->request.value("steps", job->asked.steps);
      job->asked.count = job->request.value("count", job->asked.count);
    }
    job->started = steady_seconds();
    {
      const std::scoped_lock lock(mutex_);
      jobs_.push_back(job);
    }
    take(job);
    if (waiting_ != nullptr) return;  // others that fit would make it wait for ever
  }
}

void GenerateWorker::take(const JobPtr& job) {
  try {
    GenerateLane* lane = lane_for(job);
    if (lane == nullptr) return;
    job->asked = lane->request_of(job->request, with_.shelf);
    if (!has_room(job, *lane)) return;
    const std::scoped_lock lock(mutex_);
    job->lane = lane;
    if (!job->cancelled) lane->want(1);
  } catch (const ApiError& error) {
    finish(job, JobState::kFailed, dump(error_json(error)["error"]));
  } catch (const Error& error) {
    fail(job, error);
  } catch (const json::exception&) {
    fail(job, Error(ErrorCode::kInvalidInput, "request", "is not one that this version wrote"));
  }
}

GenerateLane* GenerateWorker::lane_for(const JobPtr& job) {
  const std::string& key = job->stored.model;
  for (const auto& [name, lane] : lanes_) {
    if (name == key) return lane.get();
  }
  tell_progress(job, "loading", true);
  const std::shared_ptr<const ModelOnShelf> model = with_.shelf.model(job->request.at("model"));
  const std::string precision = job->request.at("precision");
  for (;;) {
    try {
      auto lane = std::make_unique<GenerateLane>(with_.engine, with_.shelf, *model, precision);
      with_.log.info("model loaded", {{"model", key}, {"seconds", lane->loaded().seconds}});
      for (const std::string& line : lane->loaded().fallbacks) {
        with_.metrics.add("halftone_fallbacks_total");
        with_.log.warn("fallback", {{"model", key}, {"what", line}});
      }
      const std::scoped_lock lock(mutex_);
      lanes_.emplace_back(key, std::move(lane));
      return lanes_.back().second.get();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory || !evict_one(nullptr)) {
        const bool others =
            std::ranges::any_of(lanes_, [&](const auto& entry) { return is_busy(*entry.second); });
        if (error.code() != ErrorCode::kOutOfMemory || !others) throw;
        waiting_ = job;
        return nullptr;
      }
    }
  }
}

// For one more picture at least.
bool GenerateWorker::has_room(const JobPtr& job, GenerateLane& lane) {
  if (lane.room_for(job->asked, 1, options_.max_memory, 0) > 0) return true;
  // What cannot fit evicts nobody.
  const bool others = std::ranges::any_of(lanes_, [&](const auto& entry) {
    return entry.second.get() != &lane && is_busy(*entry.second);
  });
  if (lane.room_for(job->asked, 1, options_.max_memory, idle_bytes(lane)) > 0) {
    while (evict_one(&lane)) {
      if (lane.room_for(job->asked, 1, options_.max_memory, 0) > 0) return true;
    }
  }
  if (others || is_busy(lane)) {
    waiting_ = job;
    return false;
  }
  const ModelMemory memory = lane.planned(job->asked, 1);
  check_memory(lane.loaded(), memory, options_.max_memory);
  throw Error(ErrorCode::kOutOfMemory, "size", "needs more memory than there is");
}

// In the order in which jobs came.
void GenerateWorker::fill_rows() {
  for (const JobPtr& job : std::list<JobPtr>(jobs_)) {
    GenerateLane* lane = job->lane;
    if (lane == nullptr) continue;
    try {
      while (job->begun < job->asked.count &&
             static_cast<int>(lane->rows().size()) < options_.most_rows) {
        const bool first = lane->rows().empty();
        if (!first && lane->room_for(job->asked, 1, options_.max_memory, 0) == 0) break;
        if (job->begun == 0) tell_progress(job, "text", true);
        lane->begin(job, job->begun);
        ++job->begun;
        lane->last_used = steady_seconds();
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) return;  // it is ended, or begun again, next
      fail(job, error);
    }
  }
}

void GenerateWorker::step(GenerateLane& lane) {
  const double now = steady_seconds();
  std::vector<PictureRow*> shown;
  for (PictureRow& row : lane.rows()) {
    PictureJob& job = *row.owner;
    const bool early = row.job.step() + 1 < row.job.steps();
    if (!early || !job.wants_preview() || now - job.preview_made < options_.preview_every) continue;
    if (now - job.started < options_.preview_every) continue;  // it may be done by then
    row.before = Stepper(lane.pipeline()).latents(row.job);
    job.preview_made = now;
    shown.push_back(&row);
  }
  try {
    const size_t rows = lane.rows().size();
    const auto start = steady_seconds();
    lane.step();
    with_.metrics.add("halftone_steps_total");
    with_.metrics.add("halftone_rows_total", static_cast<double>(rows));
    with_.metrics.add("halftone_step_seconds_total", steady_seconds() - start);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) return;  // they are ended next
    return fail_lane(lane, error);
  }
  for (PictureRow& row : lane.rows()) ++row.owner->steps_done;
  for (const PictureRow* row : shown) show_preview(lane, *row);
  for (auto row = lane.rows().begin(); row != lane.rows().end();) {
    if (!row->job.done()) {
      tell_progress(row->owner, "denoising");
      ++row;
      continue;
    }
    const PictureRow done = std::move(*row);
    row = lane.rows().erase(row);
    finish_picture(lane, done);
    if (lane.rows().empty()) break;
    // A failed job's other rows are gone: begin again.
    if (done.owner->lane == nullptr) row = lane.rows().begin();
  }
  lane.last_used = steady_seconds();
}

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
    file.bytes = encode_png(image, picture_text(lane.loaded(), job->asked, lane.hash(), row.index));
    file.size = static_cast<int64_t>(file.bytes.size());
    ordered_json details = {{"media", "image"},
                            {"width", image.shape()[2]},
                            {"height", image.shape()[1]},
                            {"seed", job->asked.seed + static_cast<uint64_t>(row.index)}};
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
    if (job->lane != nullptr && !job->cancelled) job->lane->want(-1);
    job->lane = nullptr;
    jobs_.remove(job);
  }
  if (waiting_ == job) waiting_ = nullptr;
  with_.previews.forget(job->stored.id);
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

void GenerateWorker::fail_lane(GenerateLane& lane, const Error& error) {
  for (const JobPtr& job : jobs_of(lane)) fail(job, error);
}

void GenerateWorker::give_back_all() {
  for (const JobPtr& job : std::list<JobPtr>(jobs_)) {
    JobChange change;
    change.job = job->stored.id;
    change.state = JobState::kQueued;
    change.progress = "";
    try {
      apply(std::move(change));
    } catch (const Error&) {  // its lease will run out
    }
    const std::scoped_lock lock(mutex_);
    jobs_.remove(job);
  }
}

void GenerateWorker::apply(JobChange change) {
  // In order: no job is done before its pictures are there.
  const bool waits = std::ranges::any_of(
      unsaved_, [&](const JobChange& other) { return other.job == change.job; });
  if (waits) return unsaved_.push_back(std::move(change));
  try {
    const std::vector<std::string> lost = with_.store.apply({&change, 1});
    if (!lost.empty()) cancel(lost);  // another server has them
  } catch (const Error& error) {
    const bool matters = change.state || !change.files.empty();
    with_.log.warn("not stored", {{"job", change.job}, {"why", error.what()}});
    if (matters) unsaved_.push_back(std::move(change));
  }
}

bool GenerateWorker::is_busy(const GenerateLane& lane) const { return !jobs_of(lane).empty(); }

std::vector<GenerateWorker::JobPtr> GenerateWorker::jobs_of(const GenerateLane& lane) const {
  std::vector<JobPtr> found;
  for (const JobPtr& job : jobs_) {
    if (job->lane == &lane) found.push_back(job);
  }
  return found;
}

int64_t GenerateWorker::idle_bytes(const GenerateLane& except) const {
  int64_t bytes = 0;
  for (const auto& [key, lane] : lanes_) {
    if (!is_busy(*lane) && lane.get() != &except) bytes += lane->held();
  }
  return bytes;
}

bool GenerateWorker::evict_one(const GenerateLane* except) {
  auto oldest = lanes_.end();
  for (auto it = lanes_.begin(); it != lanes_.end(); ++it) {
    if (is_busy(*it->second) || it->second.get() == except) continue;
    if (oldest == lanes_.end() || it->second->last_used < oldest->second->last_used) oldest = it;
  }
  if (oldest == lanes_.end()) return false;
  with_.log.info("model evicted", {{"model", oldest->first}});
  const std::scoped_lock lock(mutex_);
  lanes_.erase(oldest);
  return true;
}

}  // namespace halftone
