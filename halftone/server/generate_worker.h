// Makes pictures for all who asked, in a thread of its own: takes jobs from the store, steps those
// of one model together, whatever their prompts, steps and adapters, and loads and evicts models as
// memory allows.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "halftone/server/generate_lanes.h"
#include "halftone/server/log.h"
#include "halftone/server/metrics.h"
#include "halftone/server/outbox.h"
#include "halftone/server/previews.h"
#include "halftone/server/shelf.h"
#include "halftone/server/store.h"

namespace halftone {

struct GenerateWorkerOptions {
  int most_rows = 8;                                    // pictures of one model that share forwards
  double preview_every = 0.7;                           // seconds
  double progress_every = 0.1;                          // seconds between what is told of a job
  int64_t max_memory = 0;                               // 0: what is free
  std::function<void(const std::string&)> before_load;  // as GenerateLanes has it
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
  GenerateWorker(const With& with, const GenerateWorkerOptions& options);
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
  std::vector<std::string> loaded() const { return lanes_.keys(); }

 private:
  using JobPtr = std::shared_ptr<PictureJob>;
  void run();
  bool work();  // false: there was nothing to step
  void end_unwanted();
  void take_loaded();
  void take_waiting();
  JobWish wish() const;
  void take_jobs();
  void take(const JobPtr& job);
  // Null where the job has to wait for its model.
  GenerateLane* lane_for(const JobPtr& job);
  bool has_room(const JobPtr& job, GenerateLane& lane);
  void fill_rows();
  void step(GenerateLane& lane);
  // In generate_telling.cpp.
  void finish_picture(GenerateLane& lane, const PictureRow& row);
  void finish(const JobPtr& job, JobState state, const std::string& error = "");
  void fail(const JobPtr& job, const Error& error);
  void fail_lane(const GenerateLane& lane, const Error& error);
  void tell_progress(const JobPtr& job, const char* stage, bool now = false);
  void show_preview(GenerateLane& lane, const PictureRow& row);
  void give_back_all();
  void apply(JobChange change);

  With with_;
  GenerateWorkerOptions options_;

  Outbox outbox_;
  // Changed by the thread alone, under the mutex; read by others under it.
  mutable std::mutex mutex_;
  std::list<JobPtr> jobs_;  // taken and not ended, in the order in which they came
  std::condition_variable changed_;
  bool woken_ = true, stopping_ = false, gives_back_ = false;

  // Of these: those whose model is being loaded, and those that do not fit beside others yet.
  std::vector<JobPtr> loading_, waiting_;
  GenerateLanes lanes_;  // after what its thread wakes
  std::thread thread_;
};

}  // namespace halftone
