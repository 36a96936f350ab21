#include "halftone/training/train_record.h"

#include <fmt/format.h>

namespace halftone {

using nlohmann::ordered_json;

ordered_json run_record(const TrainOptions& options, const TrainSource& source) {
  const TrainRules& r = options.rules;
  const int64_t processes = options.processes != nullptr ? options.processes->size() : 1;
  const auto number = [](float v) { return ordered_json::parse(fmt::format("{}", v)); };
  ordered_json record = {{"mode", to_string(r.mode)},
                         {"teacher", r.teacher},
                         {"precision", source.precision},
                         {"backward", source.gradients},
                         {"targets", options.targets},
                         {"rank", r.rank},
                         {"alpha", number(r.alpha)},
                         {"batch", r.batch * processes},
                         {"accumulate", r.accumulate},
                         {"lr", number(r.optimizer.learning_rate)},
                         {"weight-decay", number(r.optimizer.weight_decay)},
                         {"warmup", r.warmup},
                         {"schedule", r.rate == RateShape::kCosine ? "cosine" : "constant"},
                         {"clip", r.clip},
                         {"optimizer", r.small_moments ? "adamw8bit" : "adamw"},
                         {"weights", r.small_weights ? "bf16" : "fp32"},
                         {"weight-gradient", r.fp8_weight_gradients ? "fp8" : "bf16"},
                         {"ema", r.average},
                         {"caption-dropout", r.caption_dropout},
                         {"dropout", number(r.dropout)},
                         {"min-snr", r.min_snr},
                         {"train-text", r.train_text},
                         {"sigma-mean", r.sigmas.mean},
                         {"sigma-deviation", r.sigmas.deviation},
                         {"shift", r.sigmas.shift},
                         {"seed", r.seed}};
  if (r.rate == RateShape::kCosine) record["steps"] = r.steps;
  record["model"] = source.model_hash;
  if (!source.data_hash.empty()) record["data"] = source.data_hash;
  return record;
}

Metadata result_metadata(const TrainOptions& options, const TrainSource& source, size_t steps) {
  const ordered_json targets = options.targets;
  Metadata metadata = {{"halftone.base", source.model_hash},
                       {"halftone.base_precision", source.precision},
                       {"halftone.backward_precision", source.gradients},
                       {"halftone.targets", targets.dump()},
                       {"halftone.data", source.data_hash},
                       {"halftone.family", source.family},
                       {"halftone.mode", to_string(options.rules.mode)},
                       {"halftone.steps", std::to_string(steps)}};
  if (options.rules.mode == TrainMode::kLora) {
    metadata["halftone.rank"] = std::to_string(options.rules.rank);
    metadata["halftone.alpha"] = fmt::format("{}", options.rules.alpha);
  }
  if (!options.captions.trigger.empty()) metadata["halftone.trigger"] = options.captions.trigger;
  return metadata;
}

}  // namespace halftone
