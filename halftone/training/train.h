// From a folder of pictures to an adapter: read, encoded, trained, written.
//
//   TrainOptions options;
//   options.model.path = "Z-Image";
//   options.data = "pictures";
//   options.output = "style.safetensors";
//   train(engine, options, [](const TrainEvent&) {});
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "halftone/engine/engine.h"
#include "halftone/training/checkpoints.h"
#include "halftone/training/dataset.h"
#include "halftone/training/train_events.h"
#include "halftone/training/trainer.h"

namespace halftone {

// Pictures of the adapter on its way.
struct SampleOptions {
  int64_t every = 0;                 // steps; 0: none
  std::vector<std::string> prompts;  // none: the first captions of the data
  int64_t width = 0, height = 0;     // 0: a square of the resolution that is trained at
  int steps = 0;                     // 0: the model's
  uint64_t seed = 0;
};

// Pictures that are not trained on, and what the loss on them is.
struct HeldOutOptions {
  std::filesystem::path data;  // empty: none
  int64_t every = 0;           // steps; 0: about twenty times
};

// Errors name these fields, and those of TrainRules.
struct TrainOptions {
  ModelSpec model;
  std::filesystem::path data;
  std::filesystem::path output;  // a .safetensors
  TrainRules rules;
  // With a precision of "auto": gradients are in fp8 where the base is, whatever the rules say.
  bool choose_backward = false;
  std::vector<std::string> targets = {"all"};  // all, attention, or patterns of weights
  int64_t resolution = 0;                      // 0: the model's own
  CaptionRules captions;
  std::filesystem::path prior;  // pictures of what the model should not forget; empty: none
  double prior_weight = 1;      // of their loss
  std::filesystem::path cache;  // empty: beside the output
  LoraNaming naming = LoraNaming::kDiffusers;
  DType stored = DType::kBF16;  // of the adapter
  int64_t save_every = 0;       // steps; 0: only where a run ends early
  int64_t keep = 2;             // checkpoints
  SampleOptions samples;
  HeldOutOptions held_out;
  bool deterministic = false;       // on a GPU: the same bits in every run, as on the CPU always
  bool resume = false;              // from the last checkpoint beside the output
  int64_t max_memory = 0;           // 0: what is free
  Collective* processes = nullptr;  // that train together; the first of them writes
  // Asked after every step: true ends the run with a checkpoint. So does ModelSpec::cancelled.
  std::function<bool()> stop;
};

struct TrainResult {
  std::string output, report;  // the report's empty where it could not be written
  std::vector<TrainStep> curve;
  std::vector<HeldOutLoss> held_out;
  std::vector<Trainer::GradientCosine> cosines;  // where they were asked for
  size_t pictures = 0, priors = 0, held_out_pictures = 0;
  std::vector<SkippedFile> skipped;
  std::map<std::string, int64_t> sizes;  // pictures of each, "64x64"
  TrainModelLoaded model;
  std::vector<SampleMade> samples;
  std::vector<std::string> notes;
  int64_t resumed_from = 0;  // the step; 0: from the start
  double seconds = 0, samples_per_second = 0;
  std::optional<SumSeconds> sums;  // of gradients, where there are other processes
  int64_t planned_bytes = 0, peak_bytes = 0;
};

// Ended early, it throws Error{kCancelled} that says where the checkpoint is.
TrainResult train(Engine& engine, const TrainOptions& options, const TrainSink& events);

}  // namespace halftone
