#include "halftone/training/train_precision.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/engine/job.h"
#include "halftone/training/text_training.h"
#include "halftone/training/train_data.h"
#include "halftone/training/trainer.h"

namespace halftone {
namespace {

// Less is noise; and gradients that point elsewhere are no bargain.
constexpr double kFaster = 1.05, kLeastCosine = 0.9;

// Pictures of nothing: what they show takes no time.
std::vector<TrainExample> examples_of(const LoadedModel& loaded, const TrainRules& rules,
                                      int64_t resolution) {
  const int64_t unit = loaded.model->codec().scale() * loaded.model->denoiser().patch();
  const int64_t side = std::max(unit, resolution / unit * unit);
  const Shape rows = loaded.model->latent_shape(side, side);
  const Shape shape{rows[1], rows[2], rows[3]};
  const char* const caption = "a picture of something";
  const Condition condition = rules.train_text ? caption_ids(loaded.model->conditioner(), caption)
                                               : loaded.pipeline->encode(caption);
  std::vector<TrainExample> examples;
  for (int64_t i = 0; i < rules.batch; ++i) {
    examples.push_back({seeded_noise(shape, static_cast<uint64_t>(i)), condition, 1});
  }
  return examples;
}

std::shared_ptr<const Model> in_fp8(const Model& model) {
  return model.with_recipe(model.denoiser().recipe(formats::fp8));
}

}  // namespace

PrecisionTrial try_fp8(const LoadedModel& loaded, const TrainRules& rules, int64_t resolution) {
  const FormatSupport support = format_support(loaded.device_info, formats::fp8);
  if (support.support != Support::kNative) {
    return {nullptr, fmt::format("fp8 is {} here", to_string(support.support))};
  }
  try {
    PrecisionTrial trial{in_fp8(*loaded.model), ""};
    TrainRules how = rules;
    how.check_gradients = true;
    Trainer trainer(trial.model, examples_of(loaded, rules, resolution), how, {}, nullptr,
                    loaded.cancelled);
    const Trainer::Trial measured = trainer.try_gradients();
    const double worst =
        std::ranges::min_element(measured.cosines, {}, &Trainer::GradientCosine::cosine)->cosine;
    const double ratio = measured.wide_seconds / measured.seconds;
    trial.why = fmt::format(
        "measured here, a step in fp8 is {} times as fast as in {} ({} ms), with gradients in {} "
        "at a cosine of {:.4f} or more",
        three_digits(ratio), loaded.precision.used, three_digits(measured.seconds * 1e3),
        rules.fp8_gradients ? "fp8" : "bf16", worst);
    if (ratio < kFaster || worst < kLeastCosine) trial.model = nullptr;
    return trial;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) throw;
    return {nullptr, fmt::format("fp8 could not be tried: {}", error.what())};
  }
}

void choose_precision(TrainOptions& options, LoadedModel& loaded, const std::string& before,
                      Collective& processes) {
  TrainRules& rules = options.rules;
  const bool free = options.model.precision == "auto" && rules.mode == TrainMode::kLora &&
                    loaded.model->report().formats.empty();
  if (!free) {
    if (options.choose_backward) rules.fp8_gradients = false;
    return;
  }
  TrainRules tried = rules;
  if (options.choose_backward) tried.fp8_gradients = true;
  PrecisionTrial trial;
  if (before == formats::fp8.name) {
    trial = {in_fp8(*loaded.model), "as the run began"};
  } else if (before.empty()) {
    trial = try_fp8(loaded, tried, resolution_of(options, loaded));
  }
  // Processes measure each for itself, and train alike.
  const double chosen = processes.sum(trial.model != nullptr ? 1.0 : 0.0, options.stop);
  if (trial.model != nullptr && chosen < processes.size()) {
    trial = {nullptr, "another process has not chosen fp8"};
  }
  Choice& choice = loaded.precision;
  if (!trial.why.empty()) choice.why += (choice.why.empty() ? "" : "; ") + trial.why;
  if (options.choose_backward) rules.fp8_gradients = trial.model != nullptr;
  if (trial.model == nullptr) return;
  choice = {choice.asked, std::string(formats::fp8.name), "native", trial.why};
  loaded.model = trial.model;
  loaded.pipeline = loaded.make_pipeline();
}

Choice chosen_backward(const TrainOptions& options, const LoadedModel& loaded) {
  const bool fp8 = options.rules.fp8_gradients;
  const bool bf16 = loaded.model->options().activations == DType::kBF16;
  const Format& wide = bf16 ? formats::bf16 : formats::fp32;
  const FormatSupport how = format_support(loaded.device_info, wide);
  Choice choice = {options.choose_backward ? "auto"
                   : fp8                   ? "fp8"
                                           : "bf16",
                   std::string(wide.name), std::string(to_string(how.support)),
                   std::string(how.why)};
  if (fp8 && loaded.model->report().formats.empty()) {
    choice.why = fmt::format("the base is in {}", loaded.precision.used);
  } else if (fp8) {
    choice.used = "fp8";
    const FormatSupport support = format_support(loaded.device_info, formats::fp8);
    choice.how = to_string(support.support);
    choice.why = support.why;
  }
  return choice;
}

}  // namespace halftone
