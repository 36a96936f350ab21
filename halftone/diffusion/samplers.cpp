#include "halftone/diffusion/samplers.h"

#include <cmath>

#include "halftone/base/error.h"

namespace halftone {
namespace {

void check_combination(const Combination& factors) {
  for (const float factor : factors) {
    if (std::isfinite(factor)) continue;
    throw Error(ErrorCode::kInvalidInput, "scheduler",
                "has factors beyond float: its config does not fit together");
  }
}

// Configs are checked field by field; what they amount to together is checked here.
void check_schedule(const Schedule& schedule) {
  for (const SamplerStep& step : schedule.steps) {
    check_combination({static_cast<float>(step.sigma), static_cast<float>(step.timestep),
                       step.input_scale, step.signal, step.noise_level, schedule.initial_scale});
    check_combination(step.clean);
    check_combination(step.latents);
    for (const Combination& factors : step.memory) check_combination(factors);
  }
}

Schedule dispatch(const SchedulerConfig& config, int steps, int64_t image_tokens) {
  switch (config.kind) {
    case SchedulerKind::kFlowMatchEuler:
      return flow_match_schedule(config, steps, image_tokens);
    case SchedulerKind::kEuler:
    case SchedulerKind::kEulerAncestral:
      return euler_schedule(config, steps);
    case SchedulerKind::kDdim:
      return ddim_schedule(config, steps);
    case SchedulerKind::kDpmSolver:
      return dpm_solver_schedule(config, steps, image_tokens);
    case SchedulerKind::kUniPc:
      return unipc_schedule(config, steps, image_tokens);
  }
  throw Error(ErrorCode::kInvalidInput, "scheduler", "is of no kind that is known");
}

}  // namespace

Schedule make_schedule(const SchedulerConfig& config, int steps, int64_t image_tokens) {
  if (steps < 1 || steps > kMostSteps) {
    throw Error(ErrorCode::kInvalidInput, "steps", "{} is not in 1 .. {}", steps, kMostSteps);
  }
  Schedule schedule = dispatch(config, steps, image_tokens);
  HT_ASSERT(schedule.steps.size() == static_cast<size_t>(steps));
  check_schedule(schedule);
  return schedule;
}

double NoiseLevel::lambda() const { return std::log(alpha) - std::log(sigma); }

NoiseLevel preserving_level(double sigma) {
  const double alpha = 1 / std::sqrt(sigma * sigma + 1);
  return {alpha, sigma * alpha};
}

NoiseLevel flow_level(double sigma) { return {1 - sigma, sigma}; }

std::array<double, 2> clean_factors(Prediction prediction, const NoiseLevel& level) {
  switch (prediction) {
    case Prediction::kVelocity:
      return {1, -level.sigma};
    case Prediction::kEpsilon:
      return {1 / level.alpha, -level.sigma / level.alpha};
    case Prediction::kV:
      return {level.alpha, -level.sigma};
    case Prediction::kSample:
      break;
  }
  return {0, 1};
}

Factors& Factors::add(double factor, const Factors& other) {
  for (size_t i = 0; i < values_.size(); ++i) values_[i] += factor * other.values_[i];
  return *this;
}

Factors clean_picture(Prediction prediction, const NoiseLevel& level, size_t memories) {
  const auto factors = clean_factors(prediction, level);
  Factors clean(memories);
  clean.add(factors[0], kLatents).add(factors[1], kPrediction);
  return clean;
}

double phi(int k, double z) {
  double inverse_factorial = 1;  // of k
  for (int i = 2; i <= k; ++i) inverse_factorial /= i;
  if (std::abs(z) < 1) {  // the series: the recursion would cancel
    double term = inverse_factorial, sum = 0;
    for (int i = 1; i <= 20; ++i) {
      sum += term;
      term *= z / (k + i);
    }
    return sum;
  }
  if (k == 0) return std::exp(z);
  if (k == 1) return std::expm1(z) / z;
  return (phi(k - 1, z) - inverse_factorial * k) / z;
}

}  // namespace halftone
