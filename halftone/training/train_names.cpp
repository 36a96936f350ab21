#include "halftone/training/train_names.h"

#include <utility>

#include "halftone/base/error.h"

namespace halftone {
namespace {

template <class Value, size_t kCount>
Value meaning(const char* field, const std::string& word,
              const std::pair<const char*, Value> (&words)[kCount]) {
  for (const auto& [known, value] : words) {
    if (word == known) return value;
  }
  throw Error(ErrorCode::kUsage, field, "'{}' is not known", printable(word, 40));
}

}  // namespace

void set_rules(const TrainNames& names, TrainOptions& options) {
  TrainRules& rules = options.rules;
  rules.mode = meaning<TrainMode>(
      "mode", names.mode,
      {{"lora", TrainMode::kLora}, {"full", TrainMode::kFull}, {"qat", TrainMode::kQat}});
  rules.rate =
      meaning<RateShape>("schedule", names.schedule,
                         {{"constant", RateShape::kConstant}, {"cosine", RateShape::kCosine}});
  rules.small_moments =
      meaning<bool>("optimizer", names.optimizer, {{"adamw", false}, {"adamw8bit", true}});
  rules.recompute = meaning<Recompute>(
      "recompute", names.recompute,
      {{"none", Recompute::kNone}, {"rows", Recompute::kRows}, {"blocks", Recompute::kBlocks}});
  rules.fp8_gradients =
      meaning<bool>("backward", names.backward, {{"auto", false}, {"bf16", false}, {"fp8", true}});
  options.choose_backward = names.backward == "auto";
  rules.small_weights = meaning<bool>("weights", names.weights, {{"fp32", false}, {"bf16", true}});
  rules.fp8_weight_gradients =
      meaning<bool>("weight-gradient", names.weight_gradient, {{"bf16", false}, {"fp8", true}});
}

float usual_learning_rate(TrainMode mode) {
  constexpr float kAdapters = 1e-4f, kWeights = 1e-5f;
  return mode == TrainMode::kLora ? kAdapters : kWeights;
}

}  // namespace halftone
