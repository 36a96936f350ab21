#include "halftone/quantize/cache_choice.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <iterator>
#include <optional>

#include "halftone/base/cache_files.h"
#include "halftone/quantize/prompt_sets.h"
#include "halftone/quantize/sampler_run.h"

namespace halftone {
namespace {

// Each a quarter to a half more than the one before; beyond the last nearly everything is reused.
constexpr float kThresholds[] = {0.01f, 0.015f, 0.02f, 0.03f, 0.04f, 0.06f, 0.08f, 0.12f,
                                 0.16f, 0.22f,  0.3f,  0.4f,  0.55f, 0.75f, 1.0f};
constexpr size_t kPictures = 4;

// All that the choice follows from.
std::string head_of(const std::string& what, const CacheChoiceOptions& o,
                    const Schedule& schedule) {
  std::string head = fmt::format("step cache 1\n{}\n{}x{} guidance {} ssim {}\n", what, o.width,
                                 o.height, o.guidance, o.least_ssim);
  for (const SamplerStep& step : schedule.steps) {
    head += fmt::format("{:.9g} {:.9g}\n", step.sigma, fmt::join(step.latents, " "));
  }
  return head;
}

std::optional<CacheChoice> remembered(const std::string& file, const std::string& head,
                                      double least_ssim) {
  CacheChoice choice;
  const std::string text = read_cache_file(file, head);
  if (std::sscanf(text.c_str(), "%f %lf %lf", &choice.threshold, &choice.ssim,
                  &choice.reused_share) != 3 ||
      !(choice.threshold >= 0 && choice.threshold <= 1) ||
      !(choice.ssim >= least_ssim && choice.ssim <= 1) ||
      !(choice.reused_share >= 0 && choice.reused_share <= 1)) {
    return {};
  }
  choice.remembered = true;
  return choice;
}

}  // namespace

int64_t cache_choice_bytes(const CacheChoiceOptions& options, const Shape& latents) {
  constexpr int64_t kOfOneComparison = 16;  // pictures, in float: SSIM smooths squares and products
  const int64_t picture = 3 * options.width * options.height * 4;
  const auto count = static_cast<int64_t>(kPictures);
  return (count + kOfOneComparison) * picture +
         count * (2 * options.steps + 1) * latents.numel() * 4;
}

CacheChoice choose_cache(Pipeline& model, const std::string& what,
                         const CacheChoiceOptions& options, const ProgressFn& progress) {
  ParityOptions how;
  how.prompts = usual_prompt_sets().calibration;
  how.prompts.resize(std::min(how.prompts.size(), kPictures));
  how.first_seed = 2'000'000;
  how.width = options.width;
  how.height = options.height;
  how.steps = options.steps;
  how.guidance = options.guidance;
  how.layer_cases = 0;
  const Shape latents = model.model().latent_shape(how.width, how.height);
  const std::string head =
      head_of(what, options, schedule_for(model.model(), options.scheduler, how.steps, latents));
  const std::string file = cache_file("step-cache", head);
  if (const auto known = remembered(file, head, options.least_ssim)) return *known;

  CacheChoice choice;
  constexpr int kFewestSteps = 3;  // the first and the last are always computed
  if (options.steps < kFewestSteps) {
    choice.why_none = "the first and the last step are always computed";
  } else {
    choice.why_none = options.not_measured;
  }
  if (!choice.why_none.empty()) return choice;

  // A bisection over the thresholds: what is more than halves the runs of trying them in turn.
  const auto count = static_cast<int64_t>(std::size(kThresholds));
  const auto tries = static_cast<int64_t>(std::ceil(std::log2(static_cast<double>(count) + 1)));
  const int64_t total = reference_predictions(how) * (1 + tries);
  int64_t before = 0;
  const ProgressFn counted = [&](const Progress& p) {
    progress({"choosing a step cache", before + p.done, total});
  };
  const ReferenceRun reference = run_reference(model, options.scheduler, how, counted);
  int64_t holds = -1, fails = count;
  while (fails - holds > 1) {
    before += reference_predictions(how);
    const int64_t middle = (holds + fails) / 2;
    Variation variation;
    variation.cache = kThresholds[middle];
    variation.single_steps = false;
    const ParityResult result = compare_with(reference, model, how, variation, counted);
    if (result.ssim.worst >= options.least_ssim) {
      holds = middle;
      choice = {variation.cache, result.ssim.worst, result.reused_share, false};
    } else {
      fails = middle;
    }
  }
  if (choice.reused_share <= 0) choice = {};  // it would change nothing
  write_cache_file(
      file, head,
      fmt::format("{:.9g} {:.9g} {:.9g}", choice.threshold, choice.ssim, choice.reused_share));
  return choice;
}

std::string told(const CacheChoice& choice, const CacheChoiceOptions& options) {
  if (!choice.why_none.empty()) return "no step cache: " + choice.why_none;
  if (choice.threshold <= 0) {
    return fmt::format(
        "no step cache: none that keeps SSIM at {:g} reuses a step on calibration prompts",
        options.least_ssim);
  }
  return fmt::format(
      "step cache {:g}: SSIM at least {:.3f} and {:.0f}% of the steps reused on calibration "
      "prompts "
      "(bound {:g}){}",
      choice.threshold, choice.ssim, 100 * choice.reused_share, options.least_ssim,
      choice.remembered ? ", measured earlier" : "");
}

}  // namespace halftone
