// Where a run can go on from: OUT.checkpoints/step-000500/ with adapter.safetensors, an adapter
// like any other, or model.safetensors; and state.safetensors, everything that the next step
// depends on. A checkpoint is there as a whole or not at all.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "halftone/training/train_events.h"
#include "halftone/training/trainer.h"

namespace halftone {

// A run as far as it came.
struct TrainedSoFar {
  Trainer::State state;
  std::vector<TrainStep> curve;  // one for every step
  std::vector<HeldOutLoss> held_out;
  std::string held_out_hash;  // of the pictures that these are of
  std::vector<Trainer::GradientCosine> cosines;
  std::vector<SampleMade> samples;
};

class Checkpoints {
 public:
  // Beside the adapter that the run will write; the last `keep` of them stay. A run that does not
  // go on from those that are there moves them to OUT.checkpoints.old before it has any of its own.
  Checkpoints(const std::filesystem::path& output, int64_t keep, bool go_on);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path path_of(int64_t step) const;
  // `how` says what the state follows from: numbers and texts by the names of options.
  // `write_result` is given the folder to write what is trained to.
  void save(const TrainedSoFar& run, const nlohmann::ordered_json& how,
            const std::function<void(const std::filesystem::path&)>& write_result);
  // Another process of this run has saved here: what is there stays.
  void go_on() { go_on_ = true; }
  // Until no one writes there any more: a run that was interrupted may not be done yet. `stop` is
  // asked meanwhile, and true ends the wait with Error{kCancelled}.
  void wait_for_others(const std::function<bool()>& stop) const;
  struct Found {
    std::filesystem::path folder;
    int64_t step = 0;
  };
  std::vector<Found> list() const;  // the last one first
  // What an option was, in a checkpoint that can be read; empty where it says nothing.
  static std::string recorded(const std::filesystem::path& checkpoint, const std::string& option);
  // An Error where the state is damaged, or follows from something else: it names the option.
  static TrainedSoFar load(const std::filesystem::path& checkpoint,
                           const nlohmann::ordered_json& how);

 private:
  std::filesystem::path folder_;
  int64_t keep_;
  bool go_on_;
};

}  // namespace halftone
