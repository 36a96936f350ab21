// Does long work, one job at a time, in a thread of its own: beside the pictures that are made
// meanwhile, and with the same weights.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "halftone/server/log.h"
#include "halftone/server/long_job.h"
#include "halftone/server/metrics.h"

namespace halftone {

class LongWorker {
 public:
  LongWorker(const LongJob::With& with, Metrics& metrics, Log& log);
  ~LongWorker();
  LongWorker(const LongWorker&) = delete;
  LongWorker& operator=(const LongWorker&) = delete;

  void wake();
  void cancel(const std::vector<std::string>& jobs);
  // Takes nothing more; what is under way saves what it can and is given back to the queue.
  void stop();

 private:
  void run();
  void work(LongJob& job);
  void end(LongJob& job, const JobChange& change);

  LongJob::With with_;
  Metrics& metrics_;
  Log& log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<LongJob> job_;  // under way
  bool woken_ = true, stopping_ = false;
  std::thread thread_;
};

}  // namespace halftone
