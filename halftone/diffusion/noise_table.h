// The noise levels of training, and which of them a number of steps is at.
#pragma once

#include <array>
#include <vector>

#include "halftone/diffusion/scheduler.h"

namespace halftone {

inline constexpr int kTrainSteps = 1000;

// In float, rounded where diffusers rounds: small sigmas are the difference of numbers near 1, and
// networks know them with that rounding.
struct NoiseTable {
  std::array<float, kTrainSteps> alphas;  // squared signal; the last one is 0 with no terminal SNR
  std::array<float, kTrainSteps> sigmas;  // noise over signal; finite in any case

  double sigma_at(double timestep) const;  // interpolated
  double timestep_of(double sigma) const;  // interpolated in the logarithm
};
NoiseTable noise_table(const SchedulerConfig& config);

TimestepSpacing spacing_of(const SchedulerConfig& config);  // its own, or its kind's

// Descending timesteps of samplers that step from each to the next, and from the last to no noise.
std::vector<double> single_step_timesteps(TimestepSpacing spacing, int steps, int64_t offset);
// Those of multistep solvers: `last` counts the levels that are used, from the cleanest.
std::vector<double> multistep_timesteps(TimestepSpacing spacing, int steps, int64_t offset,
                                        int last = kTrainSteps);

// `steps` sigmas from `largest` down to `smallest`.
std::vector<double> spaced_sigmas(SigmaSpacing spacing, int steps, double largest, double smallest);

// The x at which the distribution beta(0.6, 0.6) reaches p.
double inverse_beta(double p);

}  // namespace halftone
