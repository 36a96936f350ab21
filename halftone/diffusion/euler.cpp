// Euler's method on latents = clean + sigma * noise, and its ancestral variant, which steps further
// down than it has to and makes up for that with fresh noise.
#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/diffusion/noise_table.h"
#include "halftone/diffusion/samplers.h"

namespace halftone {
namespace {

struct Levels {
  std::vector<double> sigmas, timesteps;  // the sigmas one longer
};

Levels euler_levels(const SchedulerConfig& c, int steps) {
  const NoiseTable table = noise_table(c);
  Levels levels;
  levels.timesteps = single_step_timesteps(spacing_of(c), steps, c.steps_offset);
  for (double& t : levels.timesteps) {
    t = static_cast<float>(t);
    levels.sigmas.push_back(table.sigma_at(t));
  }
  const bool ancestral = c.kind == SchedulerKind::kEulerAncestral;
  if (c.sigma_spacing != SigmaSpacing::kTimesteps && !ancestral) {
    levels.sigmas =
        spaced_sigmas(c.sigma_spacing, steps, c.sigma_max.value_or(levels.sigmas.front()),
                      c.sigma_min.value_or(levels.sigmas.back()));
    for (int i = 0; i < steps; ++i) levels.timesteps[i] = table.timestep_of(levels.sigmas[i]);
  }
  levels.sigmas.push_back(c.final_sigma_zero || ancestral ? 0 : table.sigmas.front());
  for (double& sigma : levels.sigmas) sigma = static_cast<float>(sigma);
  return levels;
}

SamplerStep step_between(const SchedulerConfig& c, double sigma, double next, double timestep) {
  double down = next, fresh = 0;
  if (c.kind == SchedulerKind::kEulerAncestral && next < sigma) {
    down = next * next / sigma;
    fresh = next * std::sqrt(1 - (next / sigma) * (next / sigma));
  }
  const NoiseLevel level = preserving_level(sigma);
  SamplerStep step;
  step.sigma = sigma;
  step.timestep = timestep;
  step.input_scale = static_cast<float>(level.alpha);  // the network knows latents of variance 1
  step.signal = 1;
  step.noise_level = static_cast<float>(sigma);
  Factors clean(0);
  const auto factors = clean_factors(c.prediction, level);
  clean.add(factors[0] * level.alpha, kLatents).add(factors[1], kPrediction);
  Factors latents(0);
  latents.add(down / sigma, kLatents).add(1 - down / sigma, clean).add(fresh, kNoise);
  step.clean = clean.rounded();
  step.latents = latents.rounded();
  return step;
}

}  // namespace

Schedule euler_schedule(const SchedulerConfig& c, int steps) {
  if (c.prediction == Prediction::kVelocity) {
    throw Error(ErrorCode::kInvalidInput, "scheduler",
                "Euler is for networks that predict epsilon, v or the sample; for a velocity "
                "there is FlowMatchEuler");
  }
  const Levels levels = euler_levels(c, steps);
  Schedule schedule;
  for (int i = 0; i < steps; ++i) {
    schedule.steps.push_back(
        step_between(c, levels.sigmas[i], levels.sigmas[i + 1], levels.timesteps[i]));
  }
  const double most = *std::max_element(levels.sigmas.begin(), levels.sigmas.end());
  const bool leading = spacing_of(c) == TimestepSpacing::kLeading;
  schedule.initial_scale = static_cast<float>(leading ? std::sqrt(most * most + 1) : most);
  return schedule;
}

}  // namespace halftone
