#include "halftone/quantize/prompt_plan.h"

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/engine/checks.h"
#include "halftone/quantize/prompt_sets.h"

namespace halftone {
namespace {

void repeat_for_samples(int samples, std::vector<std::string>& prompts) {
  if (samples == 0) return;
  for (size_t i = 0; static_cast<int>(prompts.size()) < samples; ++i) prompts.push_back(prompts[i]);
  prompts.resize(static_cast<size_t>(samples));
}

// As the recipe's own calibration ran.
void plan_again(const RecipeFile& recipe, const Sampling& usual, PromptPlan& plan) {
  const auto& c = *recipe.calibrated;
  plan.calibration.prompts = c.prompts;
  plan.calibration.first_seed = static_cast<uint64_t>(c.seed);
  plan.calibration.width = c.width;
  plan.calibration.height = c.height;
  plan.calibration.steps = static_cast<int>(c.steps);
  plan.calibration.guidance = c.guidance.value_or(usual.guidance);
  plan.certified = recipe.certified.empty() ? usual_prompt_sets().certificate : recipe.certified;
}

void plan_anew(const QuantizeModelOptions& options, const Sampling& usual, PromptPlan& plan) {
  const Sampling sampling = sampling_of(options.sampling, usual);
  plan.calibration.first_seed = options.sampling.seed;
  plan.calibration.width = sampling.width;
  plan.calibration.height = sampling.height;
  plan.calibration.steps = sampling.steps;
  plan.calibration.guidance = sampling.guidance;
  const bool searches = options.budget.has_value();
  const auto& given = options.prompts;
  const PromptSets sets = given.empty() ? usual_prompt_sets() : split_prompts(given, searches);
  if (!given.empty() && unseen(given, {}).size() < kFewestToSplit) {
    plan.note = fmt::format(
        "{}: holds less than {} prompts, too few to keep some for measuring: {} on "
        "prompts of our own",
        printable(options.prompts_name), kFewestToSplit,
        searches ? "formats are chosen and the certificate is measured"
                 : "the certificate is measured");
  }
  plan.calibration.prompts = sets.calibration;
  if (searches) plan.calibration.held_out = sets.search;
  plan.certified = sets.certificate;
  repeat_for_samples(options.samples, plan.calibration.prompts);
}

}  // namespace

Sampling sampling_of(const SamplingChoice& choice, const Sampling& usual) {
  Sampling chosen = usual;
  if (choice.size) std::tie(chosen.width, chosen.height) = *choice.size;
  if (choice.steps) chosen.steps = *choice.steps;
  if (choice.guidance) chosen.guidance = *choice.guidance;
  check_guidance(chosen.guidance, usual);
  if (!choice.scheduler.empty()) {
    chosen.scheduler = with_scheduler(usual.scheduler, choice.scheduler);
  }
  return chosen;
}

PromptPlan plan_prompts(const QuantizeModelOptions& options, const Sampling& usual) {
  PromptPlan plan;
  calibrates_as_before(options) ? plan_again(*options.recipe, usual, plan)
                                : plan_anew(options, usual, plan);
  const std::vector<std::string>& seen = plan.calibration.prompts;
  plan.certified = unseen(plan.certified, seen);
  if (plan.certified.empty()) plan.certified = unseen(usual_prompt_sets().certificate, seen);
  return plan;
}

}  // namespace halftone
