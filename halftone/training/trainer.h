// Trains a loaded model on latents and conditions, a step at a time: an adapter beside a base that
// stays as it is stored, in whatever format, or the weights themselves, of which values in F32 are
// kept and rounded on the way where the model runs in a format. A run is a function of its rules
// and its seed.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "halftone/engine/model.h"
#include "halftone/engine/pipeline.h"
#include "halftone/training/batch_order.h"
#include "halftone/training/lora_output.h"
#include "halftone/training/objective.h"
#include "halftone/training/parameters.h"

namespace halftone {

// One picture with its text, as codec and conditioner give them.
struct TrainExample {
  Tensor latents;  // F32 [C, h, w]
  Condition condition;
  float weight = 1;  // of its loss
};

enum class RateShape : uint8_t { kConstant, kCosine };

// An adapter; the weights of the denoiser; or these so that they lose less by being quantized.
enum class TrainMode : uint8_t { kLora, kFull, kQat };
std::string to_string(TrainMode mode);

struct TrainRules {
  TrainMode mode = TrainMode::kLora;
  bool teacher = false;  // targets are what the weights predict before they are rounded and trained
  int64_t steps = 1000, batch = 1, accumulate = 1;  // steps of the optimizer, each of this many
                                                    // batches
  int64_t rank = 16;
  float alpha = 16;
  std::vector<std::string> targets;  // patterns of weights; empty: every linear of the blocks, or
                                     // every weight
  AdamWArgs optimizer;               // its rate is the highest one
  RateShape rate = RateShape::kConstant;
  int64_t warmup = 0;          // steps in which the rate rises
  double clip = 1;             // of the gradient's norm; 0: none
  SigmaDraw sigmas;            // for velocity models
  double min_snr = 0;          // for the others; 0: off
  double caption_dropout = 0;  // share of examples that are shown without their caption
  float dropout = 0;           // share of what adapters read that is zero
  bool small_moments = false;  // of the optimizer, in 8 bits
  bool fp8_gradients = false;  // of outputs of linears whose weights are quantized, in E5M2
  Recompute recompute = Recompute::kRows;
  double average = 0;  // decay of a running mean of the adapters, which is then the result
  uint64_t seed = 0;
};

struct TrainStep {
  int64_t step = 0;  // from 1 on
  double loss = 0, gradient_norm = 0, learning_rate = 0;
};

// The linears whose adapters, or the weights that the rules' patterns select; none is an Error, and
// so are weights that are stored in a format.
std::vector<LinearInfo> adapter_sites(const Model& model, const TrainRules& rules);
std::vector<std::string> trained_weights(const Model& model, const TrainRules& rules);

class Trainer {
 public:
  // Errors name a field of the rules: no examples, patterns that match nothing, a rank below 1.
  // `no_caption` is what caption dropout shows instead.
  // With others, each process takes its own rows of a batch that is so many times as large.
  Trainer(std::shared_ptr<const Model> model, std::vector<TrainExample> examples,
          const TrainRules& rules, Condition no_caption = {}, Collective* processes = nullptr);

  bool done() const { return step_ >= rules_.steps; }
  // A loss or a gradient that is no number is an Error that names the step and the weight; nothing
  // has changed then.
  TrainStep step();
  // The running mean, where there is one.
  TrainedLora adapters() const;
  std::map<std::string, Tensor> weights() const;  // F32
  int64_t parameters() const { return parameters_->count(); }
  int64_t parts() const;  // adapters or weights
  // What runs slower than it should, a line each.
  const std::vector<std::string>& notes() const { return notes_; }

  // Memory of its programs, for others that run between steps.
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  // What a run takes, known before the first step. Builds the largest programs, and runs nothing.
  ModelMemory plan();

  // Everything that the next step depends on, and back.
  struct State {
    int64_t step = 0;
    BatchOrder::Position position;
    std::map<std::string, Tensor> tensors;
  };
  State state() const;
  void restore(const State& state);

 private:
  struct Entry {
    DenoiserShape shape;
    std::unique_ptr<Program> program;
    std::unique_ptr<Program> teacher;  // where there is one
  };
  // A row of a batch, as it is shown.
  struct Row {
    const TrainExample* example;
    const Condition* condition;
    uint64_t at;  // in the step
  };
  std::vector<Row> rows_of(const std::vector<size_t>& batch, int64_t part) const;
  Entry& program_for(const Shape& latents, std::span<const int64_t> texts);
  std::unique_ptr<Program> student_program(const Graph& plain);
  std::unique_ptr<Program> program_of(const std::shared_ptr<Graph>& graph, const Weights& weights);
  Tensor dropout_keys(const std::vector<Row>& rows) const;
  double run(const std::vector<Row>& rows, bool add);
  double rate() const;
  std::map<std::string, Tensor> initial_adapters();
  std::map<std::string, Tensor> initial_weights() const;
  std::string first_without_number() const;

  Collective alone_;
  Collective& processes_;
  std::shared_ptr<const Model> model_;
  std::shared_ptr<const Model> teacher_;  // in high precision, where there is one
  std::vector<TrainExample> examples_;
  TrainRules rules_;
  Objective objective_;
  LoraSites sites_;
  std::unique_ptr<Parameters> parameters_;
  Condition no_caption_;
  BatchOrder order_;
  std::list<Entry> programs_;  // the last few, the most recent first
  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();
  int64_t step_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace halftone
