// DDIM: to the clean picture, and back along the noise that was predicted; with eta, in part along
// fresh noise. Levels are those of training, exactly.
#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/diffusion/noise_table.h"
#include "halftone/diffusion/samplers.h"

namespace halftone {
namespace {

[[noreturn]] void refuse(const char* reason) {
  throw Error(ErrorCode::kInvalidInput, "scheduler", "{}", reason);
}

// Between levels whose squared signals are these.
SamplerStep ddim_step(const SchedulerConfig& c, double squared, double next_squared) {
  const NoiseLevel level{std::sqrt(squared), std::sqrt(1 - squared)};
  if (level.alpha == 0 && c.prediction == Prediction::kEpsilon) {
    refuse(
        "DDIM finds no picture where 'rescale_betas_zero_snr' leaves noise alone, if the "
        "network predicts epsilon");
  }
  const double variance = c.eta * c.eta * (1 - next_squared) / (1 - squared) *
                          std::max(0.0, 1 - squared / next_squared);
  const Factors clean = clean_picture(c.prediction, level, 0);
  Factors noise(0);
  noise.add(1 / level.sigma, kLatents).add(-level.alpha / level.sigma, clean);
  Factors latents(0);
  latents.add(std::sqrt(next_squared), clean)
      .add(std::sqrt(std::max(0.0, 1 - next_squared - variance)), noise)
      .add(std::sqrt(variance), kNoise);
  SamplerStep step;
  const double seen = std::max(squared, 0x1p-24);  // a finite sigma where there is no signal
  step.sigma = std::sqrt((1 - seen) / seen);
  step.signal = static_cast<float>(level.alpha);
  step.noise_level = static_cast<float>(level.sigma);
  step.clean = clean.rounded();
  step.latents = latents.rounded();
  return step;
}

}  // namespace

Schedule ddim_schedule(const SchedulerConfig& c, int steps) {
  if (c.prediction == Prediction::kVelocity) {
    refuse("DDIM is for networks that predict epsilon, v or the sample");
  }
  if (c.clip_sample) refuse("'clip_sample' is true, and only false is supported");
  if (!(c.eta >= 0 && c.eta <= 1)) refuse("'eta' is not in 0 .. 1");
  const NoiseTable table = noise_table(c);
  const double final_squared = c.set_alpha_to_one ? 1.0 : table.alphas.front();
  Schedule schedule;
  for (const double t : single_step_timesteps(spacing_of(c), steps, c.steps_offset)) {
    const int whole = static_cast<int>(std::rint(t));
    const int at = std::min(whole, kTrainSteps - 1);
    const int next = std::min(whole - kTrainSteps / steps, kTrainSteps - 1);
    SamplerStep step =
        ddim_step(c, table.alphas[at], next >= 0 ? table.alphas[next] : final_squared);
    step.timestep = at;
    schedule.steps.push_back(std::move(step));
  }
  return schedule;
}

}  // namespace halftone
