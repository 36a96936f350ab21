// A loaded model in one precision, and the pictures that are being made with it: rows of different
// requests, at different steps, that share forwards. For one thread.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "halftone/engine/engine.h"
#include "halftone/engine/job.h"
#include "halftone/server/shelf.h"
#include "halftone/server/store.h"

namespace halftone {

class GenerateLane;

// A job that a server has taken to make pictures for.
struct PictureJob {
  StoredJob stored;
  nlohmann::json request;    // as it was checked when it was submitted
  GenerateRequest asked;     // the same for the engine, once its model is there
  int begun = 0, ended = 0;  // pictures
  int64_t steps_done = 0;    // of all pictures
  double started = 0;        // seconds of a steady clock
  double progress_told = 0, preview_made = 0;
  std::atomic<bool> cancelled{false};
  GenerateLane* lane = nullptr;  // once it has one
  std::vector<std::string> fallbacks;
  nlohmann::ordered_json summary;

  bool wants_preview() const { return request.value("previews", true); }
  int64_t steps() const { return int64_t{asked.steps} * asked.count; }
};

struct PictureRow {
  std::shared_ptr<PictureJob> owner;
  int index = 0;
  Job job;
  Tensor before;  // latents before the last step, where a preview is due
};

class GenerateLane {
 public:
  GenerateLane(Engine& engine, const Shelf& shelf, const ModelOnShelf& model,
               const std::string& precision);

  LoadedModel& loaded() { return loaded_; }
  Pipeline& pipeline() { return *loaded_.pipeline; }
  const std::string& hash();
  std::list<PictureRow>& rows() { return rows_; }
  double last_used = 0;
  int users = 0;  // jobs that it is for, until they have ended
  bool is_busy() const { return users > 0; }

  // What the engine is to do for a job; its adapters are loaded.
  GenerateRequest request_of(const nlohmann::json& request, Shelf& shelf);
  // How many more pictures of this job fit into memory beside the rows that there are, `most` at
  // most; what else could be freed counts as free where `reclaimable` says so.
  int room_for(const GenerateRequest& request, int most, int64_t limit, int64_t reclaimable);
  // What its weights take that is no file's, and what it holds to run.
  int64_t held() const;
  ModelMemory planned(const GenerateRequest& request, int rows);

  // Starts a picture of a job.
  void begin(const std::shared_ptr<PictureJob>& job, int index);
  // A step of all rows. Error{kCancelled} where nobody wants them any more; they are as they were.
  void step();
  Tensor picture(const PictureRow& row);  // F32 [3, H, W]; an Error where it holds NaN
  Tensor preview(const PictureRow& row);

  // Of jobs that nobody has cancelled, `more` are here than before. Where there is none, whatever
  // runs ends between kernels. From any thread.
  void want(int more) { wanted_ += more; }
  void end() { ended_ = true; }  // for good: the server stops

 private:
  // A pipeline that was stopped in the middle is not used again.
  template <class Run>
  auto run(const Run& run);

  LoadedModel loaded_;
  std::string hash_;
  std::atomic<int> wanted_{0};
  std::atomic<bool> ended_{false};
  std::list<PictureRow> rows_;
  int64_t held_ = 0;  // to run, as planned so far
  struct KnownAdapter {
    std::string state;
    std::shared_ptr<const Adapter> adapter;
  };
  std::map<std::string, KnownAdapter> adapters_;
};

}  // namespace halftone
