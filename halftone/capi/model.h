// What is behind the handles.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "halftone/engine/engine.h"
#include "halftone/halftone_c.h"

namespace halftone::capi {

// A pipeline, and the largest plan that it has run: so much memory it holds already.
struct Worker {
  std::unique_ptr<Pipeline> pipeline;
  int64_t held = 0;
};

// A loaded model with as many workers as ever ran at once.
class SharedModel {
 public:
  SharedModel(LoadedModel loaded, bool strict);

  const LoadedModel& loaded() const { return loaded_; }
  bool strict() const { return strict_; }
  const std::vector<const char*>& fallbacks() const { return fallbacks_; }
  std::string hash() const;  // of the files, read once

  Worker take();
  void give_back(Worker worker);

 private:
  LoadedModel loaded_;  // goes last: it holds the device
  bool strict_;
  std::vector<const char*> fallbacks_;
  mutable std::once_flag hashed_;
  mutable std::string hash_;
  std::mutex mutex_;
  std::vector<Worker> idle_;
};

// A worker for the time of a call. One that was left in the middle of a run is not used again.
class Lease {
 public:
  explicit Lease(std::shared_ptr<SharedModel> model)
      : model_(std::move(model)), worker_(model_->take()) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  Worker& operator*() { return worker_; }
  Worker* operator->() { return &worker_; }
  void begin_run() { running_ = true; }
  void end_run() { running_ = false; }

 private:
  std::shared_ptr<SharedModel> model_;
  Worker worker_;
  bool running_ = false;
};

// The model that is installed beside this library, or beside the program; empty without one.
std::string installed_model();

}  // namespace halftone::capi

struct halftone_engine {
  halftone::Engine engine;
};
struct halftone_model {
  std::shared_ptr<halftone::capi::SharedModel> shared;
};
struct halftone_adapter {
  std::shared_ptr<halftone::capi::SharedModel> model;  // that it is for; outlives it
  std::shared_ptr<const halftone::Adapter> adapter;
};
