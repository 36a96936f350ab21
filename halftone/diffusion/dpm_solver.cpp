// DPM-Solver++, multistep, of order 1 to 3 (Lu et al. 2022), and its SDE of order 1 and 2: the
// clean picture is extrapolated in lambda from the last few predictions of it.
#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/diffusion/samplers.h"

namespace halftone {
namespace {

int order_of_step(const SchedulerConfig& c, const SolverLevels& levels, size_t i) {
  const size_t steps = levels.timesteps.size();
  const bool lowers = c.lower_order_final && steps < 15;
  int order = levels.distinct(i, c.solver_order);
  if (i + 1 == steps && (c.euler_at_final || lowers || c.final_sigma_zero)) order = 1;
  if (i + 2 == steps && lowers) order = std::min(order, 2);
  return order;
}

// The next latents, from the clean pictures of this step and of those before it.
Factors dpm_update(const SchedulerConfig& c, const SolverLevels& levels, size_t i,
                   const std::vector<Factors>& pictures) {
  const size_t memories = pictures.size() - 1;
  if (levels.sigmas[i + 1] == 0) return pictures[0];
  const NoiseLevel from = levels.at(i), to = levels.at(i + 1);
  const auto lambda = [&](size_t k) { return levels.at(k).lambda(); };
  const double h = lambda(i + 1) - lambda(i);
  const double z = c.stochastic ? -2 * h : -h;
  Factors next(memories);
  next.add(to.sigma / from.sigma * (c.stochastic ? std::exp(-h) : 1), kLatents)
      .add(-to.alpha * std::expm1(z), pictures[0]);
  if (c.stochastic) next.add(to.sigma * std::sqrt(std::max(0.0, -std::expm1(-2 * h))), kNoise);

  const int order = order_of_step(c, levels, i);
  if (order == 1) return next;
  // First differences, in units of this step.
  const double h0 = lambda(i) - lambda(i - 1);
  Factors slope(memories);
  slope.add(h / h0, pictures[0]).add(-h / h0, pictures[1]);
  const double by_integral = -to.alpha * z * phi(2, z);
  if (order == 2) {
    return next.add(c.heun ? by_integral : -to.alpha * std::expm1(z) / 2, slope);
  }
  const double h1 = lambda(i - 1) - lambda(i - 2);
  Factors bend = slope;  // the difference of differences
  bend.add(-h / h1, pictures[1]).add(h / h1, pictures[2]);
  next.add(by_integral, slope).add(by_integral * h0 / (h0 + h1), bend);
  return next.add(-to.alpha * z * phi(3, z) * h / (h0 + h1), bend);
}

}  // namespace

Schedule dpm_solver_schedule(const SchedulerConfig& c, int steps, int64_t image_tokens) {
  if (c.stochastic && c.solver_order > 2) {
    throw Error(ErrorCode::kInvalidInput, "scheduler",
                "'solver_order' is {}, and sde-dpmsolver++ has 1 and 2 alone", c.solver_order);
  }
  const SolverLevels levels = solver_levels(c, steps, image_tokens);
  Schedule schedule;
  schedule.memories = static_cast<size_t>(c.solver_order) - 1;
  for (size_t i = 0; i < static_cast<size_t>(steps); ++i) {
    SamplerStep step = solver_step(c, levels, i, schedule.memories);
    // The clean picture of this step, and those of the steps before, newest first.
    std::vector<Factors> pictures = {clean_picture(c.prediction, levels.at(i), schedule.memories)};
    for (size_t k = 0; k < schedule.memories; ++k) {
      pictures.push_back(Factors::of(schedule.memories, kFirstMemory + k));
      step.memory.push_back(pictures[k].rounded());
    }
    step.latents = dpm_update(c, levels, i, pictures).rounded();
    schedule.steps.push_back(std::move(step));
  }
  return schedule;
}

}  // namespace halftone
