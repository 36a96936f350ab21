// Norms of one row of floats. Sums are formed in float, where squares end at 1e38 and vanish below
// 1e-38; a row that leaves this range is summed again in double.
#pragma once

#include <cmath>
#include <utility>

#include "halftone/kernels/cpu/fast/row_math.h"

namespace halftone::fast {

inline double row_sum(const float* x, int64_t n) {
  const double quick = sum(x, n);
  if (std::isfinite(quick)) return quick;
  double exact = 0;
  for (int64_t i = 0; i < n; ++i) exact += x[i];
  return exact;
}

inline double row_squares(const float* x, float center, int64_t n) {
  const double quick = sum_of_squares(x, center, n);
  if (std::isfinite(quick) && quick > 1e-30 * static_cast<double>(n)) return quick;
  double exact = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double difference = static_cast<double>(x[i]) - center;
    exact += difference * difference;
  }
  return exact;
}

inline void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* y) {
  const double mean_square = row_squares(x, 0, n) / static_cast<double>(n);
  scale_and_weigh(x, static_cast<float>(1 / std::sqrt(mean_square + eps)), weight, n, y);
}

// The sum of a b; beyond float's range in double.
inline double row_dot(const float* a, const float* b, int64_t n) {
  const double quick = dot(a, b, n);
  if (std::isfinite(quick)) return quick;
  double exact = 0;
  for (int64_t i = 0; i < n; ++i) exact += static_cast<double>(a[i]) * b[i];
  return exact;
}

// y = x r w with r = 1 / sqrt(mean(x^2) + eps): dx = r dy w - x r^3 mean(dy w x). Returns r.
inline float rms_norm_grad_row(const float* dy, const float* x, const float* weight, float eps,
                               int64_t n, float* dx) {
  const double count = static_cast<double>(n);
  const double rstd = 1 / std::sqrt(row_squares(x, 0, n) / count + eps);
  multiply(dy, weight, n, dx);
  const double along = row_dot(dx, x, n) * rstd * rstd * rstd / count;
  const auto r = static_cast<float>(rstd), c = static_cast<float>(along);
  for (int64_t i = 0; i < n; ++i) dx[i] = r * dx[i] - c * x[i];
  return r;
}

// mean and 1 / standard deviation of what piece(begin, count) returns piece by piece
template <class Piece>
std::pair<float, float> moments(int64_t n, float eps, const Piece& piece) {
  constexpr int64_t kPiece = 1024;
  double total = 0, squares = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = n - i < kPiece ? n - i : kPiece;
    total += row_sum(piece(i, count), count);
  }
  const auto mean = static_cast<float>(total / static_cast<double>(n));
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = n - i < kPiece ? n - i : kPiece;
    squares += row_squares(piece(i, count), mean, count);
  }
  return {mean, static_cast<float>(1 / std::sqrt(squares / static_cast<double>(n) + eps))};
}

// Of 1 / standard deviation: below it, differences from the mean may be beyond float.
inline constexpr float kSmallest = 1e-30f;

inline void layer_norm_row(const float* x, float eps, int64_t n, float* y) {
  const auto [mean, rstd] = moments(n, eps, [x](int64_t begin, int64_t) { return x + begin; });
  if (rstd > kSmallest) return center_and_scale(x, mean, rstd, n, y);
  for (int64_t i = 0; i < n; ++i) {
    y[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * rstd);
  }
}

}  // namespace halftone::fast
