#include "halftone/training/train_precision.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/engine/job.h"
#include "halftone/training/trainer.h"

namespace halftone {
namespace {

// Less is noise; and gradients that point elsewhere are no bargain.
constexpr double kFaster = 1.05, kLeastCosine = 0.9;

// Pictures of nothing: what they show takes no time.
std::vector<TrainExample> examples_of(const LoadedModel& loaded, int64_t resolution,
                                      int64_t count) {
  const int64_t unit = loaded.model->codec().scale() * loaded.model->denoiser().patch();
  const int64_t side = std::max(unit, resolution / unit * unit);
  const Shape rows = loaded.model->latent_shape(side, side);
  const Shape shape{rows[1], rows[2], rows[3]};
  const Condition condition = loaded.pipeline->encode("a picture of something");
  std::vector<TrainExample> examples;
  for (int64_t i = 0; i < count; ++i) {
    examples.push_back({seeded_noise(shape, static_cast<uint64_t>(i)), condition, 1});
  }
  return examples;
}

}  // namespace

std::shared_ptr<const Model> in_fp8(const Model& model) {
  return model.with_recipe(model.denoiser().recipe(formats::fp8));
}

PrecisionTrial try_fp8(const LoadedModel& loaded, const TrainRules& rules, int64_t resolution) {
  const FormatSupport support = format_support(loaded.device_info, formats::fp8);
  if (support.support != Support::kNative) {
    return {nullptr, fmt::format("fp8 is {} here", to_string(support.support))};
  }
  try {
    PrecisionTrial trial{in_fp8(*loaded.model), ""};
    TrainRules how = rules;
    how.check_gradients = true;
    Trainer trainer(trial.model, examples_of(loaded, resolution, rules.batch), how, {}, nullptr,
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

}  // namespace halftone
