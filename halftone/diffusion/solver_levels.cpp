// The levels that multistep solvers step over: those of training, or of a flow.
#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/diffusion/noise_table.h"
#include "halftone/diffusion/samplers.h"

namespace halftone {
namespace {

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(ErrorCode::kInvalidInput, "scheduler", "{}", reason);
}

// How many levels of training are less noisy than what the config clips.
int unclipped_levels(const SchedulerConfig& c, const NoiseTable& table) {
  if (c.kind != SchedulerKind::kDpmSolver) return kTrainSteps;
  const auto clipped = [&](float sigma) { return -std::log(sigma) < c.lambda_min_clipped; };
  const auto count = std::count_if(table.sigmas.begin(), table.sigmas.end(), clipped);
  if (count == kTrainSteps) refuse("'lambda_min_clipped' leaves no level of noise");
  if (count != 0 && spacing_of(c) == TimestepSpacing::kTrailing) {
    refuse("'lambda_min_clipped' does not go with a 'timestep_spacing' of trailing");
  }
  return kTrainSteps - static_cast<int>(count);
}

// Timesteps are integers; how they become so differs.
double whole_timestep(const SchedulerConfig& c, double t) {
  const bool rounds =
      c.sigma_spacing == SigmaSpacing::kKarras || c.sigma_spacing == SigmaSpacing::kUniformLambda;
  const bool solver_rounds = c.kind == SchedulerKind::kUniPc || c.betas != BetaSchedule::kCosine;
  return rounds && solver_rounds ? std::rint(t) : std::trunc(t);
}

SolverLevels trained_levels(const SchedulerConfig& c, int steps) {
  const NoiseTable table = noise_table(c);
  SolverLevels levels;
  if (c.sigma_spacing == SigmaSpacing::kTimesteps) {
    levels.timesteps =
        multistep_timesteps(spacing_of(c), steps, c.steps_offset, unclipped_levels(c, table));
    for (const double t : levels.timesteps) levels.sigmas.push_back(table.sigma_at(t));
  } else {
    const bool bounded = c.kind == SchedulerKind::kUniPc;
    const double largest = bounded && c.sigma_max ? *c.sigma_max : table.sigmas.back();
    const double smallest = bounded && c.sigma_min ? *c.sigma_min : table.sigmas.front();
    levels.sigmas = spaced_sigmas(c.sigma_spacing, steps, largest, smallest);
    for (const double sigma : levels.sigmas) {
      levels.timesteps.push_back(whole_timestep(c, table.timestep_of(sigma)));
    }
  }
  const bool own = c.kind == SchedulerKind::kUniPc && c.sigma_spacing != SigmaSpacing::kTimesteps;
  const double least = own ? levels.sigmas.back() : table.sigmas.front();
  levels.sigmas.push_back(c.final_sigma_zero ? 0 : least);
  return levels;
}

// Sigmas of a flow; the last of 1000 timesteps is never reached.
std::vector<double> flow_sigmas(const SchedulerConfig& c, int steps, int64_t image_tokens) {
  const bool unipc = c.kind == SchedulerKind::kUniPc;
  if (unipc && c.sigma_spacing == SigmaSpacing::kKarras) {
    const NoiseTable table = noise_table(c);
    std::vector<double> sigmas =
        spaced_sigmas(c.sigma_spacing, steps, c.sigma_max.value_or(table.sigmas.back()),
                      c.sigma_min.value_or(table.sigmas.front()));
    for (double& sigma : sigmas) sigma /= sigma + 1;
    return sigmas;
  }
  const double shift = flow_shift(c.flow, steps, image_tokens);
  const double first = unipc ? 1 : 1 - 1e-3, last = unipc ? 1e-3 : 0;
  std::vector<double> sigmas;
  for (int i = 0; i < steps; ++i) {
    const double t = first + (last - first) * i / steps;
    sigmas.push_back(shift * t / (1 + (shift - 1) * t));
  }
  // DPM-Solver++ has no such field, as from_config of diffusers would leave it out.
  if (unipc && c.flow.shift_terminal != 0) stretch_to_terminal(sigmas, c.flow.shift_terminal);
  return sigmas;
}

SolverLevels flow_levels(const SchedulerConfig& c, int steps, int64_t image_tokens) {
  const bool karras = c.kind == SchedulerKind::kUniPc && c.sigma_spacing == SigmaSpacing::kKarras;
  if (c.sigma_spacing != SigmaSpacing::kTimesteps && !karras) {
    refuse(
        "'use_flow_sigmas' does not go with 'use_karras_sigmas' (but in UniPC), "
        "'use_exponential_sigmas', 'use_beta_sigmas' and 'use_lu_lambdas'");
  }
  SolverLevels levels;
  levels.flow = true;
  levels.sigmas = flow_sigmas(c, steps, image_tokens);
  for (double& sigma : levels.sigmas) {
    if (!(sigma > 0 && sigma <= 1)) {
      refuse(
          fmt::format("has no sigmas from 1 to 0 for {} steps and {} image tokens: flow_shift "
                      "{}, base_shift {}, max_shift {}, shift_terminal {}",
                      steps, image_tokens, c.flow.shift, c.flow.base_shift, c.flow.max_shift,
                      c.flow.shift_terminal));
    }
    sigma = std::min(sigma, 1 - 1e-6);  // at 1 there is no signal, and lambda is infinite
    levels.timesteps.push_back(std::trunc(sigma * c.flow_timesteps));
  }
  double least = levels.sigmas.back();
  if (c.kind == SchedulerKind::kDpmSolver) least = noise_table(c).sigmas.front();
  levels.sigmas.push_back(c.final_sigma_zero ? 0 : least);
  return levels;
}

}  // namespace

SolverLevels solver_levels(const SchedulerConfig& c, int steps, int64_t image_tokens) {
  if (c.prediction == Prediction::kVelocity && !c.flow_sigmas) {
    refuse("'prediction_type' flow_prediction goes with 'use_flow_sigmas' alone");
  }
  SolverLevels levels =
      c.flow_sigmas ? flow_levels(c, steps, image_tokens) : trained_levels(c, steps);
  for (double& sigma : levels.sigmas) sigma = static_cast<float>(sigma);
  return levels;
}

int SolverLevels::distinct(size_t i, int most) const {
  int order = 1;
  while (order < most && static_cast<size_t>(order) <= i &&
         sigmas[i - order] > sigmas[i - order + 1]) {
    ++order;
  }
  return order;
}

SamplerStep solver_step(const SchedulerConfig& config, const SolverLevels& levels, size_t i,
                        size_t memories) {
  const NoiseLevel level = levels.at(i);
  SamplerStep step;
  step.sigma = levels.sigmas[i];
  step.timestep = levels.timesteps[i];
  step.signal = static_cast<float>(level.alpha);
  step.noise_level = static_cast<float>(level.sigma);
  step.clean = clean_picture(config.prediction, level, memories).rounded();
  return step;
}

}  // namespace halftone
