#include "halftone/quantize/model_certificate.h"

#include "halftone/engine/precision.h"
#include "halftone/quantize/prompt_sets.h"

namespace halftone {

Certifier::Certifier(std::vector<std::string> prompts, int pictures, const CalibrationOptions& like,
                     SchedulerConfig scheduler)
    : scheduler_(std::move(scheduler)) {
  const auto count = static_cast<size_t>(pictures);
  prompts.resize(std::min(prompts.size(), count));
  how_.prompts = std::move(prompts);
  how_.seeds = static_cast<int>(count / how_.prompts.size());
  how_.first_seed = like.first_seed + 1'000'000;
  how_.width = like.width;
  how_.height = like.height;
  how_.steps = like.steps;
  how_.guidance = like.guidance;
  how_.layer_cases = 0;
}

std::optional<Certificate> Certifier::measure(Pipeline& model, const QuantizeRecipe& recipe,
                                              const WeightQuantizer& quantizer,
                                              const ProgressFn& progress) {
  const int64_t first = reference_ ? 0 : reference_predictions(how_);
  int64_t before = 0;
  const ProgressFn both = [&](const Progress& p) {
    progress({p.item, before + p.done, first + compared_predictions(how_)});
  };
  if (!reference_) reference_ = run_reference(model, scheduler_, how_, both);
  before = first;
  model.set_recipe(recipe, quantizer);
  ParityResult result = compare_with(*reference_, model, how_, {}, both);
  result.name = format_names(model.model().report().formats);
  Certificate certificate = certificate_of(result, how_);
  certificate.reference = "bf16";
  certificate.prompts_from =
      unseen(how_.prompts, usual_prompt_sets().certificate).empty() ? "own" : "given";
  if (!certificate.finite()) return {};
  return certificate;
}

}  // namespace halftone
