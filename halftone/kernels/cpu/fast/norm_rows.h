// Norms of one row of floats.
#pragma once

#include <cmath>
#include <utility>

#include "halftone/kernels/cpu/fast/row_math.h"

namespace halftone::fast {

inline void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* y) {
  const double mean_square = sum_of_squares(x, 0, n) / static_cast<double>(n);
  scale_and_weigh(x, static_cast<float>(1 / std::sqrt(mean_square + eps)), weight, n, y);
}

// mean and 1 / standard deviation
inline std::pair<float, float> moments(const float* x, int64_t n, float eps) {
  const auto mean = static_cast<float>(sum(x, n) / static_cast<double>(n));
  const double variance = sum_of_squares(x, mean, n) / static_cast<double>(n);
  return {mean, static_cast<float>(1 / std::sqrt(variance + eps))};
}

inline void layer_norm_row(const float* x, float eps, int64_t n, float* y) {
  const auto [mean, rstd] = moments(x, n, eps);
  center_and_scale(x, mean, rstd, n, y);
}

}  // namespace halftone::fast
