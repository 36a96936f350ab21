// Where steps lie: timesteps by three rules, sigmas by four.
#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/diffusion/noise_table.h"

namespace halftone {
namespace {

// i of n, evenly from first to last.
double even(double first, double last, int i, int n) {
  if (i == n - 1 && n > 1) return last;
  return n == 1 ? first : i * ((last - first) / (n - 1)) + first;
}

// Down from kTrainSteps by equal distances, to -1 + the last of them. The distance is what is left
// of it beside kTrainSteps, which decides ties.
std::vector<double> trailing(int steps) {
  const double from = kTrainSteps;
  const double distance = from - (from - from / steps);
  std::vector<double> timesteps;
  for (int i = 0; i < steps; ++i) timesteps.push_back(std::rint(from - i * distance) - 1);
  return timesteps;
}

}  // namespace

TimestepSpacing spacing_of(const SchedulerConfig& config) {
  return config.timestep_spacing.value_or(
      config.kind == SchedulerKind::kDdim ? TimestepSpacing::kLeading : TimestepSpacing::kLinspace);
}

std::vector<double> single_step_timesteps(TimestepSpacing spacing, int steps, int64_t offset) {
  if (spacing == TimestepSpacing::kTrailing) return trailing(steps);
  const int64_t distance = kTrainSteps / steps;
  std::vector<double> timesteps;
  for (int i = steps - 1; i >= 0; --i) {
    timesteps.push_back(spacing == TimestepSpacing::kLinspace
                            ? even(0, kTrainSteps - 1, i, steps)
                            : static_cast<double>(i * distance + offset));
  }
  return timesteps;
}

std::vector<double> multistep_timesteps(TimestepSpacing spacing, int steps, int64_t offset,
                                        int last) {
  if (spacing == TimestepSpacing::kTrailing) return trailing(steps);
  // At least 1: diffusers would put 1000 steps at one timestep.
  const int distance = std::max(1, last / (steps + 1));
  std::vector<double> timesteps;
  for (int i = steps; i >= 1; --i) {
    timesteps.push_back(spacing == TimestepSpacing::kLinspace
                            ? std::rint(even(0, last - 1, i, steps + 1))
                            : static_cast<double>(std::min(i * distance, last - 1) + offset));
  }
  return timesteps;
}

std::vector<double> spaced_sigmas(SigmaSpacing spacing, int steps, double largest,
                                  double smallest) {
  if (!(smallest > 0 && smallest <= largest)) {
    throw Error(ErrorCode::kInvalidInput, "scheduler",
                "has no sigmas between: 'sigma_min' {}, 'sigma_max' {}", smallest, largest);
  }
  constexpr double kRho = 7;
  std::vector<double> sigmas;
  for (int i = 0; i < steps; ++i) {
    const double part = even(0, 1, i, steps);
    switch (spacing) {
      case SigmaSpacing::kKarras: {
        const double from = std::pow(largest, 1 / kRho), to = std::pow(smallest, 1 / kRho);
        sigmas.push_back(std::pow(from + part * (to - from), kRho));
        break;
      }
      case SigmaSpacing::kBeta:
        sigmas.push_back(smallest + inverse_beta(1 - part) * (largest - smallest));
        break;
      case SigmaSpacing::kExponential:
      case SigmaSpacing::kUniformLambda:
        sigmas.push_back(std::exp(even(std::log(largest), std::log(smallest), i, steps)));
        break;
      case SigmaSpacing::kTimesteps:
        HT_ASSERT(false);
    }
  }
  return sigmas;
}

namespace {

constexpr double kShape = 0.6;  // both parameters of the distribution

// The distribution for x up to 1/2: x^a (1-x)^a / (a B) times Gauss' series 2F1(1, 2a; a+1; x).
double beta_below_half(double x) {
  const double log_b = 2 * std::lgamma(kShape) - std::lgamma(2 * kShape);
  double term = 1, sum = 0;
  for (int n = 0; n < 200 && term > 1e-18; ++n) {
    sum += term;
    term *= x * (2 * kShape + n) / (kShape + 1 + n);
  }
  return std::exp(kShape * std::log(x * (1 - x)) - log_b) / kShape * sum;
}

}  // namespace

double inverse_beta(double p) {
  if (p > 0.5) return 1 - inverse_beta(1 - p);  // it is symmetric
  if (p <= 0) return 0;
  double low = 0, high = 0.5;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (beta_below_half(middle) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace halftone
