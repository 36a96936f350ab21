#include "halftone/server/generate_worker.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "halftone/base/error.h"
#include "halftone/base/threads.h"
#include "halftone/runtime/devices.h"
#include "halftone/server/api_error.h"
#include "halftone/server/clock.h"

namespace halftone {
namespace {

using nlohmann::json;

}  // namespace

GenerateWorker::GenerateWorker(const With& with, const GenerateWorkerOptions& options)
    : with_(with),
      options_(options),
      outbox_(with.store, with.log),
      lanes_({with.engine, with.shelf, with.metrics, with.log, [this] { wake(); },
              options.before_load}),
      thread_([this] { run(); }) {}

GenerateWorker::~GenerateWorker() { stop(0); }

void GenerateWorker::wake() {
  {
    const std::scoped_lock lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

void GenerateWorker::cancel(const std::vector<std::string>& ids) {
  if (ids.empty()) return;
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
  }
  lanes_.end_all();
  wake();
  thread_.join();
}

void GenerateWorker::run() {
  for (bool stepped = false;;) {
    {
      std::unique_lock lock(mutex_);
      const auto ends = [&] { return gives_back_ || (stopping_ && jobs_.empty()); };
      // Nothing runs: until there is something to do, or someone's time is over.
      if (!stepped) {
        const std::chrono::milliseconds most(jobs_.empty() ? 1000 : 100);
        changed_.wait_for(lock, most, [&] { return woken_ || ends(); });
      }
      woken_ = false;
      if (ends()) break;
    }
    try {
      stepped = work();
    } catch (const Error& error) {  // of the store; what is under way stays
      with_.log.warn("the store cannot be reached", {{"why", error.what()}});
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  }
  give_back_all();
  changed_.notify_all();
}

bool GenerateWorker::work() {
  cancel(outbox_.put_again());
  end_unwanted();
  bool stopping = false;
  {
    const std::scoped_lock lock(mutex_);
    stopping = stopping_;
  }
  take_loaded();
  take_waiting();
  // Others that fit would make those that wait do so for ever.
  if (!stopping && outbox_.empty() && waiting_.empty()) take_jobs();
  fill_rows();
  bool stepped = false;
  for (GenerateLane* lane : lanes_.all()) {
    if (lane->rows().empty()) continue;
    step(*lane);
    stepped = true;
  }
  return stepped;
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

// As many of a model as it can make together. While one is loaded, those of others that would have
// to be are left to wait in the queue.
JobWish GenerateWorker::wish() const {
  std::map<std::string, int> wanted;
  for (const JobPtr& job : jobs_) wanted[job->stored.model] += job->asked.count - job->ended;
  JobWish wish{{"generate"}, {}, {}};
  for (const auto& [key, pictures] : wanted) {
    if (pictures >= options_.most_rows) wish.not_models.push_back(key);
  }
  if (!lanes_.loading().empty()) {
    wish.models = lanes_.keys();
    wish.models.push_back(lanes_.loading());
  }
  return wish;
}

void GenerateWorker::take_jobs() {
  while (waiting_.empty()) {
    std::optional<StoredJob> stored = with_.store.claim(wish());
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
  }
}

// Those for which there was no memory.
void GenerateWorker::take_waiting() {
  std::vector<JobPtr> jobs;
  std::swap(jobs, waiting_);
  for (const JobPtr& job : jobs) take(job);
}

// A model has come, or has not.
void GenerateWorker::take_loaded() {
  const std::optional<GenerateLanes::Outcome> outcome = lanes_.take();
  if (!outcome) return;
  std::vector<JobPtr> jobs;
  std::swap(jobs, loading_);
  const bool no_room = outcome->error && outcome->error->code() == ErrorCode::kOutOfMemory;
  const bool again = no_room && lanes_.evict_one(nullptr);
  if (no_room && !again && lanes_.any_busy(nullptr)) {
    waiting_.insert(waiting_.end(), jobs.begin(), jobs.end());
    return;
  }
  for (const JobPtr& job : jobs) {
    if (outcome->error && !again) {
      fail(job, *outcome->error);
    } else {
      take(job);
    }
  }
}

void GenerateWorker::take(const JobPtr& job) {
  try {
    GenerateLane* lane = lane_for(job);
    if (lane == nullptr) return;
    job->asked = lane->request_of(job->request, with_.shelf);
    if (!has_room(job, *lane)) return waiting_.push_back(job);
    const std::scoped_lock lock(mutex_);
    job->lane = lane;
    ++lane->users;
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
  if (GenerateLane* lane = lanes_.find(key)) return lane;
  if (!lanes_.loading().empty() && lanes_.loading() != key) {
    waiting_.push_back(job);
    return nullptr;
  }
  if (lanes_.loading().empty()) {
    lanes_.load(key, with_.shelf.model(job->request.at("model")), job->request.at("precision"));
  }
  tell_progress(job, "loading", true);
  loading_.push_back(job);
  return nullptr;
}

// For one more picture at least; false: it has to wait for others.
bool GenerateWorker::has_room(const JobPtr& job, GenerateLane& lane) {
  if (lane.room_for(job->asked, 1, options_.max_memory, 0) > 0) return true;
  // What cannot fit evicts nobody.
  if (lane.room_for(job->asked, 1, options_.max_memory, lanes_.idle_bytes(lane)) > 0) {
    while (lanes_.evict_one(&lane)) {
      if (lane.room_for(job->asked, 1, options_.max_memory, 0) > 0) return true;
    }
  }
  if (lanes_.any_busy(nullptr)) return false;
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

}  // namespace halftone
