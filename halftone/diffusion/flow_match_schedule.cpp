// FlowMatchEuler: straight steps along the velocity; or each to the clean picture and back with
// fresh noise.
#include "halftone/base/error.h"
#include "halftone/diffusion/noise_table.h"
#include "halftone/diffusion/samplers.h"

namespace halftone {

Schedule flow_match_schedule(const SchedulerConfig& c, int steps, int64_t image_tokens) {
  if (c.prediction != Prediction::kVelocity) {
    throw Error(ErrorCode::kInvalidInput, "scheduler",
                "FlowMatchEuler takes networks that predict a velocity alone");
  }
  std::vector<float> sigmas = flow_match_sigmas(c.flow, steps, image_tokens);
  if (c.sigma_spacing != SigmaSpacing::kTimesteps) {
    const auto spaced = spaced_sigmas(c.sigma_spacing, steps, sigmas[0], sigmas[steps - 1]);
    for (int i = 0; i < steps; ++i) sigmas[i] = static_cast<float>(spaced[i]);
  }
  Schedule schedule;
  for (int i = 0; i < steps; ++i) {
    const float sigma = sigmas[i], next = sigmas[i + 1];
    SamplerStep step;
    step.sigma = sigma;
    step.timestep = double{sigma} * c.flow_timesteps;
    step.signal = 1 - sigma;
    step.noise_level = sigma;
    step.clean = {1, -sigma, 0};
    step.latents = {1, next - sigma, 0};
    if (c.stochastic) step.latents = {1 - next, -(1 - next) * sigma, next};
    schedule.steps.push_back(std::move(step));
  }
  return schedule;
}

}  // namespace halftone
