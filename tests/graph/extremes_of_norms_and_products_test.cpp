// Norms and products of numbers of every magnitude that float has, and of Inf and NaN, against the
// reference in double.
#include <gtest/gtest.h>

#include "tests/support/extremes.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::kInf;

using test::floats;
using Values = std::span<const Value>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<int> exponents() {
  return {-149, -140, -127, -126, -110, -75, -64, -40, -20, 0, 20, 40, 62, 63, 64, 65, 100, 126};
}

// Numbers of either sign and about this magnitude.
std::vector<float> about(int exponent, int64_t count, uint64_t seed) {
  std::vector<float> values = test::gaussians(seed, count);
  for (float& v : values)
    v = std::ldexp(std::copysign(0.5f + std::fmod(std::abs(v), 1.0f), v), exponent);
  return values;
}

std::vector<std::vector<float>> rows_of_every_magnitude(int64_t cols) {
  std::vector<std::vector<float>> rows;
  for (const int e : exponents()) {
    rows.push_back(about(e, cols, 1));
    auto outlier = about(-3, cols, 2);  // one number of this magnitude among others
    outlier[5] = std::ldexp(1.5f, e);
    rows.push_back(outlier);
    auto opposite = about(e, cols, 3);  // far from its mean
    for (int64_t i = 0; i < cols; ++i)
      opposite[i] = std::copysign(opposite[i], i % 2 ? 1.0f : -1.0f);
    rows.push_back(opposite);
    std::vector<float> shifted = about(e, cols, 4);  // all of one sign
    for (float& v : shifted) v = std::abs(v);
    rows.push_back(shifted);
  }
  constexpr float kMost = std::numeric_limits<float>::max();
  rows.emplace_back(cols, kMost);
  rows.emplace_back(cols, 0.0f);
  for (const float special : {kInf, -kInf, kNaN}) {
    rows.push_back(about(0, cols, 5));
    rows.back()[7] = special;
  }
  return rows;
}

// As far apart as sums in float are, or both Inf or NaN.
void expect_close(const Tensor& fast, const Tensor& reference, double tolerance,
                  const std::string& what) {
  const auto a = floats(fast), b = floats(reference);
  ASSERT_EQ(a.size(), b.size());
  double scale = 1e-30;  // numbers below float's smallest normal one are coarse
  for (const float v : b) {
    if (std::isfinite(v)) scale = std::max(scale, double{std::abs(v)});
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(b[i])) {
      ASSERT_LE(std::abs(double{a[i]} - b[i]), tolerance * scale)
          << what << ", value " << i << ": " << a[i] << " instead of " << b[i];
    } else {
      ASSERT_EQ(std::isnan(a[i]), std::isnan(b[i]))
          << what << ", value " << i << ": " << a[i] << " instead of " << b[i];
      if (!std::isnan(b[i])) {
        ASSERT_EQ(a[i], b[i]) << what << ", value " << i;
      }
    }
  }
}

TEST(ExtremesOfNormsAndProducts, NormsOfRowsOfEveryMagnitude) {
  constexpr int64_t kCols = 96;
  const Tensor weight = test::random_tensor({kCols}, 9), bias = test::random_tensor({kCols}, 10);
  const auto rms = [](Values v) { return rms_norm(v[0], v[1], 1e-6f); };
  const auto layer = [](Values v) { return layer_norm(v[0], 1e-6f); };
  const auto group = [](Values v) {
    return group_norm(reshape(v[0], {1, 2, 4, 12}), slice(v[1], 0, 0, 2), slice(v[2], 0, 0, 2), 1,
                      1e-6f);
  };
  int row = 0;
  for (const auto& values : rows_of_every_magnitude(kCols)) {
    const Tensor x = test::f32_tensor({1, kCols}, values);
    const std::string at = fmt::format("row {} from {}", row++, values[0]);
    const auto compare = [&](const char* name, const test::Builder& f,
                             const std::vector<Tensor>& inputs) {
      expect_close(test::run_op(f, inputs, cpu_kernels()),
                   test::run_op(f, inputs, cpu_scalar_kernels()), 2e-6,
                   std::string(name) + " of " + at);
    };
    compare("rms_norm", rms, {x, weight});
    compare("layer_norm", layer, {x});
    compare("group_norm", group, {x, weight, bias});
  }
}

// The product of what is large and what is small; tiles, single rows, and what is not a number.
TEST(ExtremesOfNormsAndProducts, ProductsOfEveryMagnitude) {
  constexpr int64_t kDepth = 80, kCols = 40;
  const auto product = [](Values v) { return linear(v[0], v[1]); };
  for (const int64_t rows : {1, 40}) {
    const auto compare = [&](const std::vector<float>& a, const std::vector<float>& b,
                             const std::string& what) {
      const std::vector<Tensor> inputs = {test::f32_tensor({1, rows, kDepth}, a),
                                          test::f32_tensor({kCols, kDepth}, b)};
      expect_close(test::run_op(product, inputs, cpu_kernels()),
                   test::run_op(product, inputs, cpu_scalar_kernels()), 2e-6, what);
    };
    for (const int e : exponents()) {
      for (const int other : {-e / 2, -e, std::min(126, -e - 20)}) {
        if (e + other < -100) continue;  // what is below float's smallest normal number is coarse
        compare(about(e, rows * kDepth, 1), about(other, kCols * kDepth, 2),
                fmt::format("2^{} by 2^{}", e, other));
      }
    }
    for (const float special : {kInf, -kInf, kNaN}) {
      auto a = about(0, rows * kDepth, 1);
      auto b = about(0, kCols * kDepth, 2);
      a[3] = special;
      b[3] = 0;  // Inf times nothing is NaN
      compare(a, b, fmt::format("{} on the left", special));
      a = about(0, rows * kDepth, 1);
      b[kDepth + 4] = special;
      compare(a, b, fmt::format("{} on the right", special));
    }
  }
}

TEST(ExtremesOfNormsAndProducts, AttentionOfLogitsOfEveryMagnitude) {
  const Shape shape{1, 20, 1, 32};
  const auto f = [](Values v) { return attention(v[0], v[1], v[2], std::nullopt, {0.2f}); };
  for (const int e : exponents()) {
    for (const int v : {-100, 0, 100}) {
      const std::vector<Tensor> inputs = {
          test::f32_tensor(shape, about(e, shape.numel(), 1)),
          test::f32_tensor(shape, about(std::min(126, -e), shape.numel(), 2)),
          test::f32_tensor(shape, about(v, shape.numel(), 3))};
      expect_close(test::run_op(f, inputs, cpu_kernels()),
                   test::run_op(f, inputs, cpu_scalar_kernels()), 2e-6,
                   fmt::format("queries 2^{}, values 2^{}", e, v));
    }
  }
}

}  // namespace
}  // namespace halftone
