// Trains a loaded model on latents and conditions, a step at a time: an adapter beside a base that
// stays as it is stored, in whatever format, or the weights themselves, of which values in F32 are
// kept and rounded on the way where the model runs in a format. A run is a function of its rules
// and its seed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "halftone/engine/model.h"
#include "halftone/engine/pipeline.h"
#include "halftone/training/batch_order.h"
#include "halftone/training/draws.h"
#include "halftone/training/gradient_sums.h"
#include "halftone/training/lora_output.h"
#include "halftone/training/parameters.h"
#include "halftone/training/train_programs.h"
#include "halftone/training/train_rules.h"

namespace halftone {

// One picture with its text, as codec and conditioner give them.
struct TrainExample {
  Tensor latents;  // F32 [C, h, w]
  Condition condition;
  float weight = 1;  // of its loss
};

struct TrainStep {
  int64_t step = 0;  // from 1 on
  double loss = 0, gradient_norm = 0, learning_rate = 0;
  std::optional<SumSeconds> sums = {};  // where there are other processes
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
  // `cancelled` is asked between kernels, and true ends a step.
  Trainer(std::shared_ptr<const Model> model, std::vector<TrainExample> examples,
          const TrainRules& rules, Condition no_caption = {}, Collective* processes = nullptr,
          std::function<bool()> cancelled = {});

  bool done() const { return step_ >= rules_.steps; }
  // A loss or a gradient that is no number is an Error that names the step and the weight; nothing
  // has changed then.
  TrainStep step();
  // The running mean, where there is one. In the CPU's memory, where a step may change it.
  TrainedLora adapters() const;
  std::map<std::string, Tensor> weights() const;  // F32, or BF16 where they are kept so
  int64_t parameters() const { return parameters_->count(); }
  int64_t parts() const;  // adapters or weights
  // How gradients reach other processes; null: there are none.
  const SumRoad* sum_road() const { return sums_ ? &sums_->road() : nullptr; }
  // What runs slower than it should, a line each.
  const std::vector<std::string>& notes() const { return programs_->notes(); }

  // Examples that no step sees.
  void hold_out(std::vector<TrainExample> examples) { held_out_ = std::move(examples); }
  // The mean loss of these, each with noise of a few strengths that are the same in every run: of
  // the running mean where there is one, which is the result.
  double held_out_loss();
  // Of every adapter or weight: the cosine between the gradient as this run computes it and as it
  // is where base and gradients are in high precision, for a batch that no run trains on.
  struct GradientCosine {
    std::string weight;
    double cosine = 0;
  };
  std::vector<GradientCosine> gradient_cosines();
  // The same, and the seconds that either takes.
  struct Trial {
    double seconds = 0, wide_seconds = 0;
    std::vector<GradientCosine> cosines;
  };
  Trial try_gradients();

  // Memory of its programs, for others that run between steps.
  const std::shared_ptr<Arena>& arena() const { return programs_->arena(); }
  // What a run takes, known before the first step. Builds the largest programs, and runs nothing.
  ModelMemory plan();

  // Everything that the next step depends on, and back. Tensors are valid until the next step.
  struct State {
    int64_t step = 0;
    BatchOrder::Position position;
    std::map<std::string, Tensor> tensors;
  };
  State state() const;
  void restore(const State& state);

 private:
  // A row of a batch, as it is shown.
  struct Row {
    const TrainExample* example;
    const Condition* condition;
    uint64_t at;  // in the step
  };
  std::vector<Row> rows_of(const std::vector<size_t>& batch, int64_t part) const;
  // Where noise and strengths come from.
  struct Drawn {
    uint64_t seed, when;
    Draw strength, noise;
  };
  static constexpr Drawn kSameInEveryRun = {0, 0, Draw::kHeldOutStrength, Draw::kHeldOutNoise};
  std::vector<Row> first_rows() const;
  Tensor dropout_keys(const std::vector<Row>& rows) const;
  // Runs a program on these rows, in its own way or as it is run alone, and returns their loss.
  using RunFn = std::function<void(Program&)>;
  double run(
      TrainPrograms::Entry& entry, const std::vector<Row>& rows, const Drawn& drawn,
      const RunFn& run_program = [](Program& program) { program.run(); });
  TrainPrograms::Entry& program_for(TrainPass pass, const std::vector<Row>& rows);
  std::vector<std::vector<Row>> held_out_batches() const;
  TrainPass compared_pass() const;
  double rate() const;
  std::map<std::string, Tensor> initial_adapters();
  std::map<std::string, Tensor> initial_weights() const;
  std::string first_without_number() const;

  Collective alone_;
  Collective& processes_;
  std::shared_ptr<const Model> model_;
  std::function<bool()> cancelled_;
  std::vector<TrainExample> examples_, held_out_;
  TrainRules rules_;
  Objective objective_;
  LoraSites sites_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<GradientSums> sums_;  // null: this process is alone
  Condition no_caption_;
  BatchOrder order_;
  std::unique_ptr<TrainPrograms> programs_;
  int64_t step_ = 0;
};

}  // namespace halftone
