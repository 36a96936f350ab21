#include "halftone/training/train_plan.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/runtime/devices.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

int64_t stored_bytes(const TrainOptions& options) { return options.stored == DType::kF32 ? 4 : 2; }

}  // namespace

ModelMemory plan_run(const TrainOptions& options, const LoadedModel& loaded, Trainer& trainer,
                     const TrainSamples* samples) {
  ModelMemory memory = trainer.plan();
  const int64_t there = memory.owned_weights;
  if (samples != nullptr) {
    const ModelMemory sampled = samples->plan(loaded);
    if (sampled.in_arena() > memory.in_arena()) {
      memory.arena = sampled.arena;
      memory.workspace = sampled.workspace;
      memory.slots = sampled.slots;
    }
    memory.library = std::max(memory.library, sampled.library);
    memory.borders += sampled.borders;
    // As sampled: adapters are read from a file in F32.
    memory.owned_weights +=
        trainer.parameters() * (options.rules.mode == TrainMode::kLora ? 4 : stored_bytes(options));
  }
  if (loaded.context == nullptr) {
    give_back_freed_memory();
    memory.process = std::max<int64_t>(0, anonymous_memory() - there) + library_code_bytes();
  }
  return memory;
}

void check_room(const TrainOptions& options, const LoadedModel& loaded, const Trainer& trainer) {
  const TrainRules& rules = options.rules;
  const int64_t values = trainer.parameters();
  int64_t result = values * stored_bytes(options);
  if (rules.mode != TrainMode::kLora) {
    result = 0;
    for (const auto& [name, weight] : loaded.model->originals()) {
      result += std::get<Tensor>(weight).numel() * 4;  // some may be stored so
    }
  }
  const int64_t state = values * ((rules.small_moments ? 2 : 8) + (rules.small_weights ? 2 : 4)) +
                        (rules.average > 0 ? 4 * values : 0);
  const int64_t checkpoints = options.save_every > 0 ? options.keep + 1 : 1;
  const int64_t needed = result + checkpoints * (result + state);
  std::error_code error;
  const fs::path folder = fs::absolute(options.output).parent_path();
  const fs::space_info space = fs::space(folder, error);
  if (error || static_cast<int64_t>(space.available) >= needed) return;
  throw Error(ErrorCode::kIo, "output", "'{}' has room for {}, and the result with {} {} {}",
              printable(folder.string()), human_bytes(static_cast<int64_t>(space.available)),
              checkpoints, checkpoints == 1 ? "checkpoint takes" : "checkpoints takes",
              human_bytes(needed));
}

}  // namespace halftone
