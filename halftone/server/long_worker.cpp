#include "halftone/server/long_worker.h"

#include <algorithm>
#include <chrono>

#include "halftone/base/error.h"
#include "halftone/server/api_error.h"

namespace halftone {

LongWorker::LongWorker(const LongJob::With& with, Metrics& metrics, Log& log)
    : with_(with), metrics_(metrics), log_(log), thread_([this] { run(); }) {}

LongWorker::~LongWorker() { stop(); }

void LongWorker::wake() {
  {
    const std::scoped_lock lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

void LongWorker::cancel(const std::vector<std::string>& jobs) {
  const std::scoped_lock lock(mutex_);
  if (job_ != nullptr && std::ranges::count(jobs, job_->stored().id) > 0) job_->cancel();
}

void LongWorker::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    if (job_ != nullptr) job_->give_back();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LongWorker::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (!woken_ && !stopping_) {
        changed_.wait_for(lock, std::chrono::seconds(1), [&] { return woken_ || stopping_; });
      }
      woken_ = false;
      if (stopping_) return;
    }
    try {
      for (;;) {
        std::optional<StoredJob> stored =
            with_.store.claim({{"train", "quantize", "compare"}, {}, {}});
        if (!stored) break;
        const auto job = std::make_shared<LongJob>(with_, std::move(*stored));
        {
          const std::scoped_lock lock(mutex_);
          job_ = job;
          if (stopping_) job->give_back();
        }
        work(*job);
        const std::scoped_lock lock(mutex_);
        job_ = nullptr;
        if (stopping_) return;
      }
    } catch (const Error& error) {  // of the store
      log_.warn("the store cannot be reached", {{"why", error.what()}});
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  }
}

void LongWorker::work(LongJob& job) {
  const StoredJob& stored = job.stored();
  log_.info("job begun", {{"job", stored.id}, {"kind", stored.kind}, {"model", stored.model}});
  JobChange change;
  change.job = stored.id;
  bool can_resume = false;
  try {
    if (!job.request().is_object()) {
      throw Error(ErrorCode::kInvalidInput, "request", "is not one that this version wrote");
    }
    const nlohmann::ordered_json summary = stored.kind == "train" ? run_train_job(job, can_resume)
                                           : stored.kind == "quantize" ? run_quantize_job(job)
                                                                       : run_compare_job(job);
    change.state = JobState::kDone;
    change.summary = dump(summary);
    change.resume = false;
    return end(job, change);
  } catch (const Error& error) {
    const bool ended = error.code() == ErrorCode::kCancelled;
    change.resume = can_resume;
    change.state = JobState::kFailed;
    ApiError told = api_error(error);
    if (ended && job.cancelled()) {
      change.state = JobState::kCancelled;
    } else if (ended && job.given_back()) {
      change.state = JobState::kQueued;
      change.resume = true;
    } else if (ended && job.late()) {
      told = {504, "timeout", "timeout", "it took longer than it was given"};
    }
    told.message = job.without_paths(told.message);
    if (change.state == JobState::kFailed) change.error = dump(error_json(told)["error"]);
  } catch (const ApiError& error) {
    change.state = JobState::kFailed;
    change.error = dump(error_json(error)["error"]);
  } catch (const std::exception& error) {  // of a library, on the way
    change.state = JobState::kFailed;
    change.resume = can_resume;
    change.error = dump(
        error_json({500, "internal", "", job.without_paths(printable(error.what()))})["error"]);
  }
  end(job, change);
}

// However long the store takes: what a job has come to is not forgotten while the server runs.
void LongWorker::end(LongJob& job, const JobChange& change) {
  bool stored = job.put(change);
  for (int last_tries = 20; !stored && last_tries > 0; stored = job.put_again()) {
    bool stopping = false;
    {
      std::unique_lock lock(mutex_);
      stopping = changed_.wait_for(lock, std::chrono::milliseconds(500), [&] { return stopping_; });
    }
    if (!stopping) continue;
    --last_tries;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  // Otherwise it runs, as far as the store knows, and is begun again.
  if (!stored) log_.warn("not stored", {{"job", change.job}});
  const std::string state = to_string(*change.state);
  metrics_.add(
      fmt::format("halftone_jobs_total{{kind=\"{}\",state=\"{}\"}}", job.stored().kind, state));
  log_.info("job ended", {{"job", change.job},
                          {"kind", job.stored().kind},
                          {"state", state},
                          {"error", change.error}});
}

}  // namespace halftone
