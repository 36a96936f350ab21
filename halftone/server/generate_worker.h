// Makes pictures for all who asked, in a thread of its own: takes jobs from the store, steps those
// of one model together, whatever their prompts, steps and adapters, and loads and evicts models as
// memory allows.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "halftone/server/generate_lane.h"
#include "halftone/server/log.h"
#include "halftone/server/metrics.h"
#include "halftone/server/previews.h"
#include "halftone/server/shelf.h"
#include "halftone/server/store.h"

namespace halftone {

struct GenerateWorkerOptions {
  int most_rows = 8;            // pictures of one model that share forwards
  double preview_every = 0.7;   // seconds
  double progress_every = 0.1;  // seconds between what is told of a job
  int64_t max_memory = 0;       // 0: what is free
};

class GenerateWorker {
 public:
  // What it works with outlives it.
  struct With {
    Engine& engine;
    Shelf& shelf;
    Store& store;
    Metrics& metrics;
    Previews& previews;
    Log& log;
  };
  GenerateWorker(const With& with, GenerateWorkerOptions options);
  ~GenerateWorker();
  GenerateWorker(const GenerateWorker&) = delete;
  GenerateWorker& operator=(const GenerateWorker&) = delete;

  void wake();  // there may be something to do
  // These jobs are to end.
  void cancel(const std::vector<std::string>& jobs);
  // Takes nothing more. What is under way is finished within so many seconds, and otherwise given
  // back to the queue. Returns when that is so.
  void stop(double seconds);

  // "emoji|fp8" and so on, of the models in memory.
  std::vector<std::string> loaded() const;

 private:
  using JobPtr = std::shared_ptr<PictureJob>;
  void run();
  void work();
  void end_unwanted();
  void take_jobs();
  void take(const JobPtr& job);
  // Null where the job has to wait for others, or has failed.
  GenerateLane* lane_for(const JobPtr& job);
  bool has_room(const JobPtr& job, GenerateLane& lane);
  void fill_rows();
  void step(GenerateLane& lane);
  void finish_picture(GenerateLane& lane, const PictureRow& row);
  void finish(const JobPtr& job, JobState state, const std::string& error = "");
  void fail(const JobPtr& job, const Error& error);
  void fail_lane(GenerateLane& lane, const Error& error);
  void tell_progress(const JobPtr& job, const char* stage, bool now = false);
  void show_preview(GenerateLane& lane, const PictureRow& row);
  void give_back_all();
  void apply(JobChange change);
  // The least recently used model that nobody uses goes. False where there is none.
  bool evict_one(const GenerateLane* except);
  int64_t idle_bytes(const GenerateLane& except) const;
  bool is_busy(const GenerateLane& lane) const;
  std::vector<JobPtr> jobs_of(const GenerateLane& lane) const;

  With with_;
  GenerateWorkerOptions options_;

  // Changed by the thread alone, under the mutex; read by others under it.
  mutable std::mutex mutex_;
  std::list<std::pair<std::string, std::unique_ptr<GenerateLane>>> lanes_;
  std::list<JobPtr> jobs_;  // taken and not ended, in the order in which they came
  std::condition_variable changed_;
  bool woken_ = true, stopping_ = false, gives_back_ = false;

  JobPtr waiting_;                  // its model does not fit beside those that are busy
  std::vector<JobChange> unsaved_;  // that the store has not taken yet
  std::thread thread_;
};

}  // namespace halftone
