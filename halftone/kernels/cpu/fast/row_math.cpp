// Plain loops, where the build has no Highway.
#include "halftone/kernels/cpu/fast/row_math.h"

#include <algorithm>
#include <cmath>

#include "halftone/numerics/gelu.h"

namespace halftone::fast {
namespace {

constexpr int64_t kLanes = 16;  // partial sums, so that the compiler can use vectors

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

template <class Fn>
void map(const float* x, int64_t n, float* y, const Fn& fn) {
  for (int64_t i = 0; i < n; ++i) y[i] = fn(x[i]);
}

// Runs are short enough that float sums stay accurate.
template <class Fn>
double total(const float* x, int64_t n, const Fn& fn) {
  double result = 0;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    const int64_t count = std::min<int64_t>(1024, n - begin);
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i % kLanes] += fn(x[begin + i]);
    for (const float lane : lanes) result += lane;
  }
  return result;
}

}  // namespace

void widen(const bf16* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = to_float(x[i]);
}
void narrow(const float* x, int64_t n, bf16* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(x[i]);
}
void round_to_bf16(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = to_float(to_bf16(x[i]));
}

void add(const float* a, const float* b, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}
void multiply(const float* a, const float* b, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] * b[i];
}
void affine(const float* x, AffineAttributes how, int64_t n, float* y) {
  map(x, n, y, [=](float v) { return v * how.scale + how.shift; });
}
void apply(Function function, const float* x, int64_t n, float* y) {
  switch (function) {
    case Function::kTanh:
      return map(x, n, y, [](float v) { return std::tanh(v); });
    case Function::kSigmoid:
      return map(x, n, y, sigmoid);
    case Function::kSilu:
      return map(x, n, y, [](float v) { return v * sigmoid(v); });
    case Function::kGelu:
      return map(x, n, y, gelu<float>);
    case Function::kQuickGelu:
      return map(x, n, y, quick_gelu<float>);
    case Function::kErfGelu:
      return map(x, n, y, [](float v) { return static_cast<float>(erf_gelu(double{v})); });
    case Function::kErfGeluSlope:
      return map(x, n, y, [](float v) { return static_cast<float>(erf_gelu_slope(double{v})); });
    case Function::kSin:
      return map(x, n, y, [](float v) { return std::sin(v); });
    case Function::kCos:
      return map(x, n, y, [](float v) { return std::cos(v); });
  }
}
void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

double sum(const float* x, int64_t n) {
  return total(x, n, [](float v) { return v; });
}
double sum_of_squares(const float* x, float center, int64_t n) {
  return total(x, n, [=](float v) { return (v - center) * (v - center); });
}
void scale_and_weigh(const float* x, float scale, const float* weight, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}
void center_and_scale(const float* x, float center, float scale, int64_t n, float* y) {
  map(x, n, y, [=](float v) { return (v - center) * scale; });
}

void rotate(const float* x, const Rotation& by, int64_t n, float* y) {
  const int64_t half = n / 2;
  const bool interleaved = by.layout == RopeLayout::kInterleaved;
  for (int64_t i = 0; i < half; ++i) {
    const int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + half;
    const float u = x[first], v = x[second], c = by.cosine[i], s = by.sign * by.sine[i];
    y[first] = u * c - v * s;
    y[second] = u * s + v * c;
  }
}

float softmax_terms(float* x, float scale, int64_t n) {
  float largest = -INFINITY, result = 0;
  for (int64_t i = 0; i < n; ++i) {
    x[i] *= scale;
    largest = std::max(largest, x[i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - largest);
    result += x[i];
  }
  return result;
}

float dot(const float* a, const float* b, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  float result = 0;
  for (const float lane : lanes) result += lane;
  for (; i < n; ++i) result += a[i] * b[i];
  return result;
}

}  // namespace halftone::fast
