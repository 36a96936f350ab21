#include "halftone/diffusion/noise_table.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"

namespace halftone {
namespace {

using Table = std::array<float, kTrainSteps>;

// From both ends to the middle, with one rounding each: where the betas that networks were trained
// with lie to the last bit.
Table even(float first, float last) {
  Table values;
  const float step = (last - first) / (kTrainSteps - 1);
  for (int i = 0; i < kTrainSteps; ++i) {
    values[i] = i < kTrainSteps / 2
                    ? std::fma(step, static_cast<float>(i), first)
                    : std::fma(-step, static_cast<float>(kTrainSteps - 1 - i), last);
  }
  return values;
}

Table cosine_betas() {
  const auto signal = [](int i) {
    const double c = std::cos((static_cast<double>(i) / kTrainSteps + 0.008) / 1.008 * M_PI / 2);
    return c * c;
  };
  Table betas;
  for (int i = 0; i < kTrainSteps; ++i) {
    betas[i] = static_cast<float>(std::min(1 - signal(i + 1) / signal(i), 0.999));
  }
  return betas;
}

Table betas_of(const SchedulerConfig& c) {
  if (c.betas == BetaSchedule::kCosine) return cosine_betas();
  if (c.betas == BetaSchedule::kLinear) {
    return even(static_cast<float>(c.beta_start), static_cast<float>(c.beta_end));
  }
  Table betas =
      even(static_cast<float>(std::sqrt(c.beta_start)), static_cast<float>(std::sqrt(c.beta_end)));
  for (float& beta : betas) beta *= beta;
  return betas;
}

Table cumulative_alphas(const Table& betas) {
  Table alphas;
  double product = 1;
  for (int i = 0; i < kTrainSteps; ++i) {
    product *= 1.0f - betas[i];
    alphas[i] = static_cast<float>(product);
  }
  return alphas;
}

// Betas under which the last level holds no signal: square roots of alphas are shifted to end at 0
// and scaled to begin where they did.
Table without_terminal_signal(const Table& betas) {
  Table roots = cumulative_alphas(betas);
  for (float& root : roots) root = std::sqrt(root);
  const float first = roots.front(), last = roots.back();
  const float scale = first / (first - last);
  for (float& root : roots) root = (root - last) * scale;
  Table result;
  for (int i = 0; i < kTrainSteps; ++i) {
    const float alpha = roots[i] * roots[i];
    result[i] = 1.0f - (i == 0 ? alpha : alpha / (roots[i - 1] * roots[i - 1]));
  }
  return result;
}

void check_table(const SchedulerConfig& c, const NoiseTable& table) {
  bool fine = table.alphas.front() < 1 && table.sigmas[kTrainSteps - 2] < 1e6f &&
              table.sigmas.back() < 1e6f;
  for (int i = 1; i < kTrainSteps; ++i) fine = fine && table.alphas[i] < table.alphas[i - 1];
  if (fine) return;
  throw Error(ErrorCode::kInvalidInput, "scheduler",
              "has no noise that grows from 0 to 1: beta_start {}, beta_end {}", c.beta_start,
              c.beta_end);
}

}  // namespace

NoiseTable noise_table(const SchedulerConfig& config) {
  Table betas = betas_of(config);
  if (config.zero_terminal_snr) betas = without_terminal_signal(betas);
  NoiseTable table;
  table.alphas = cumulative_alphas(betas);
  for (int i = 0; i < kTrainSteps; ++i) {
    const bool empty = config.zero_terminal_snr && i == kTrainSteps - 1;
    const float alpha = empty ? 0x1p-24f : table.alphas[i];
    table.sigmas[i] = std::sqrt((1.0f - alpha) / alpha);
  }
  check_table(config, table);
  return table;
}

double NoiseTable::sigma_at(double timestep) const {
  const double t = std::clamp(timestep, 0.0, kTrainSteps - 1.0);
  const int low = std::min(static_cast<int>(t), kTrainSteps - 2);
  return sigmas[low] + (t - low) * (double{sigmas[low + 1]} - double{sigmas[low]});
}

double NoiseTable::timestep_of(double sigma) const {
  // In float, as sigmas are: at the ends it decides which integer is reached.
  const auto log_at = [&](int i) { return double{std::log(sigmas[i])}; };
  const double wanted = std::log(std::max(sigma, 1e-10));
  // From above: with no terminal signal the last sigma may be less than the one before.
  int low = kTrainSteps - 1;
  while (low > 0 && log_at(low) > wanted) --low;
  low = std::min(low, kTrainSteps - 2);
  const double below = log_at(low), above = log_at(low + 1);
  const double weight = std::clamp((below - wanted) / (below - above), 0.0, 1.0);
  return low + weight;
}

}  // namespace halftone
