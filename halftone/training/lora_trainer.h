// Trains an adapter of a loaded model on latents and conditions, a step at a time. The base stays
// as it is stored, in whatever format; a run is a function of its rules and its seed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "halftone/engine/model.h"
#include "halftone/training/lora_output.h"
#include "halftone/training/objective.h"
#include "halftone/training/parameters.h"

namespace halftone {

// One picture with its text, as codec and conditioner give them.
struct TrainExample {
  Tensor latents;  // F32 [C, h, w]
  Condition condition;
};

enum class RateShape : uint8_t { kConstant, kCosine };

struct TrainRules {
  int64_t steps = 1000, batch = 1, accumulate = 1;  // steps of the optimizer, each of this many
                                                    // batches
  int64_t rank = 16;
  float alpha = 16;
  std::vector<std::string> targets;  // patterns of weights; empty: every linear of the blocks
  AdamWArgs optimizer;               // its rate is the highest one
  RateShape rate = RateShape::kConstant;
  int64_t warmup = 0;  // steps in which the rate rises
  double clip = 1;     // of the gradient's norm; 0: none
  SigmaDraw sigmas;    // for velocity models
  double min_snr = 0;  // for the others; 0: off
  uint64_t seed = 0;
};

struct TrainStep {
  int64_t step = 0;  // from 1 on
  double loss = 0, gradient_norm = 0, learning_rate = 0;
};

class LoraTrainer {
 public:
  // Errors name a field of the rules: no examples, patterns that match nothing, a rank below 1.
  LoraTrainer(std::shared_ptr<const Model> model, std::vector<TrainExample> examples,
              const TrainRules& rules);

  bool done() const { return step_ >= rules_.steps; }
  TrainStep step();
  TrainedLora adapters() const;
  int64_t parameters() const { return parameters_->count(); }
  const std::vector<std::string>& notes() const {
    return notes_;
  }  // what runs slower than it should

 private:
  struct Entry {
    DenoiserShape shape;
    std::unique_ptr<Program> program;
  };
  // Examples of one size that make a batch, by their index.
  std::vector<size_t> next_batch();
  void shuffle();
  Entry& program_for(const std::vector<size_t>& batch);
  double run(const std::vector<size_t>& batch, int64_t part);
  double rate() const;

  std::shared_ptr<const Model> model_;
  std::vector<TrainExample> examples_;
  TrainRules rules_;
  Objective objective_;
  LoraSites sites_;
  std::unique_ptr<Parameters> parameters_;
  std::map<std::string, Entry> programs_;
  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();
  int64_t step_ = 0;
  int64_t epoch_ = 0;
  std::vector<std::string> notes_;
  std::vector<std::vector<size_t>> batches_;  // that are left of this epoch, the next one last
};

}  // namespace halftone
