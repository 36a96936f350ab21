// Compensated rounding against its definition and against plain rounding; the trade-off curve.
#include "halftone/quantize/compensate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "halftone/kernels/cpu/fast/double_products.h"
#include "halftone/kernels/quantize.h"
#include "halftone/numerics/minifloat.h"
#include "halftone/quantize/search.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

constexpr int64_t kRows = 400, kIn = 288, kOut = 24;

// Inputs that are mixtures of a few sources, as activations are.
Tensor correlated_inputs() {
  constexpr int64_t kSources = 12;
  const auto sources = test::gaussians(1, kRows * kSources),
             mix = test::gaussians(2, kSources * kIn), own = test::gaussians(3, kRows * kIn);
  std::vector<float> x(kRows * kIn);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kIn; ++c) {
      float sum = 0.1f * own[r * kIn + c];
      for (int64_t s = 0; s < kSources; ++s) sum += sources[r * kSources + s] * mix[s * kIn + c];
      x[r * kIn + c] = sum;
    }
  }
  return test::f32_tensor({kRows, kIn}, x);
}

InputMoments moments_of(const Tensor& x) {
  InputMoments moments;
  InputMoments::Scratch scratch;
  constexpr int64_t kAtATime = 100;
  static_assert(kAtATime <= InputMoments::kMostRows);
  for (int64_t r = 0; r < kRows; r += kAtATime) {
    const Tensor part = x.rows(r, r + kAtATime);
    moments.add({part.bytes().data(), part.dtype(), part.shape()}, cpu_kernels(), {2}, scratch);
  }
  moments.flush(cpu_kernels(), {2}, scratch);
  return moments;
}

double output_error_by_hand(const Tensor& x, const Tensor& w, const QuantizedTensor& q) {
  const Tensor y = dequantize(cpu_kernels(), q, DType::kF32, {1});
  double error = 0, norm = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t o = 0; o < kOut; ++o) {
      double exact = 0, rounded = 0;
      for (int64_t c = 0; c < kIn; ++c) {
        const double v = x.as<float>()[r * kIn + c];
        exact += v * w.as<float>()[o * kIn + c];
        rounded += v * y.as<float>()[o * kIn + c];
      }
      error += (exact - rounded) * (exact - rounded);
      norm += exact * exact;
    }
  }
  return std::sqrt(error / norm);
}

TEST(Compensate, OutputsAreMuchNearerWhereInputsAreCorrelated) {
  HT_SKIP_WHERE_SANITIZED();
  const Tensor x = correlated_inputs(),
               w = test::f32_tensor({kOut, kIn}, test::gaussians(4, kOut * kIn));
  const InputMoments moments = moments_of(x);
  for (const Format& format : {formats::fp8, formats::fp8_tensor, formats::fp8_e5m2, formats::mxfp8,
                               formats::nvfp4, formats::nvfp4_4over6}) {
    const QuantizedTensor plain = quantize(cpu_kernels(), w, format, {}, {1});
    const QuantizedTensor q = quantize_compensated(w, format, {moments, 2}, cpu_kernels(), {2});
    const double before = output_error_by_hand(x, w, plain), after = output_error_by_hand(x, w, q);
    EXPECT_LT(after, 0.5 * before) << format.name;
    EXPECT_GT(after, 0) << format.name;
    EXPECT_NEAR(output_error(w, q, moments, cpu_kernels(), {2}), after, 1e-3 * after)
        << format.name;
    EXPECT_EQ(q.format, format);
  }
}

TEST(Compensate, ProductsInDoubleAreWhatTheyAreByHand) {
  constexpr int64_t kStride = 40;
  const auto values = test::gaussians(7, 40 * kStride);
  const std::vector<double> a(values.begin(), values.end());
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                {4, 2, 8},
                                {7, 5, 19},
                                {9, 6, 33},
                                {3, 9, 0}}) {
    std::vector<double> c(40 * kStride, 1.0);
    fast::subtract_products({c.data(), a.data() + 3, a.data() + 12 * kStride, kStride, m, n, k});
    for (int64_t i = 0; i < 40; ++i) {
      for (int64_t j = 0; j < kStride; ++j) {
        double expected = 1;
        for (int64_t p = 0; i < m && j < n && p < k; ++p) {
          expected -= a[i * kStride + 3 + p] * a[(12 + j) * kStride + p];
        }
        ASSERT_NEAR(c[i * kStride + j], expected, 1e-12) << m << " " << n << " " << k;
      }
    }
  }
}

// Column by column in double, by the definition: moments are factored from the last column on.
TEST(Compensate, CodesAreThoseOfTheDefinition) {
  const Tensor w = test::f32_tensor({kOut, kIn}, test::gaussians(4, kOut * kIn));
  const InputMoments moments = moments_of(correlated_inputs());
  std::vector<double> m(moments.sums().begin(), moments.sums().end()), u(kIn * kIn, 0.0);
  double mean = 0;
  for (int64_t i = 0; i < kIn; ++i) mean += m[i * (kIn + 1)] / kIn;
  for (int64_t i = 0; i < kIn; ++i) m[i * (kIn + 1)] += 0.01 * mean;
  for (int64_t k = kIn - 1; k >= 0; --k) {
    const double d = m[k * (kIn + 1)];
    for (int64_t j = 0; j < k; ++j) u[j * kIn + k] = m[j * kIn + k] / d;
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < k; ++j) m[i * kIn + j] -= u[i * kIn + k] * d * u[j * kIn + k];
    }
  }
  const QuantizedTensor plain = quantize(cpu_kernels(), w, formats::fp8, {}, {1});
  const QuantizedTensor q = quantize_compensated(w, formats::fp8, {moments, 2}, cpu_kernels(), {2});
  EXPECT_TRUE(std::ranges::equal(q.scales.bytes(), plain.scales.bytes()));
  int64_t same = 0, as_plain = 0;
  for (int64_t r = 0; r < kOut; ++r) {
    const float scale = plain.scales.as<float>()[r];
    std::vector<double> error(kIn);
    for (int64_t k = 0; k < kIn; ++k) {
      const double before = w.as<float>()[r * kIn + k];
      double now = before;
      for (int64_t j = 0; j < k; ++j) now += error[j] * u[j * kIn + k];
      const uint8_t code = encode<E4M3>(static_cast<float>(now) * (1.0f / scale));
      error[k] = before - double{decode<E4M3>(code)} * scale;
      same += std::byte(code) == q.codes.bytes()[r * kIn + k] ? 1 : 0;
      as_plain += plain.codes.bytes()[r * kIn + k] == q.codes.bytes()[r * kIn + k] ? 1 : 0;
    }
  }
  EXPECT_GT(same, kOut * kIn * 98 / 100);  // ties fall either way, and what follows with them
  EXPECT_LT(as_plain, kOut * kIn * 90 / 100);
}

TEST(Compensate, TheTableWithoutFastProductsGivesTheSameSums) {
  const Tensor x = correlated_inputs().rows(0, 100);
  InputMoments fast, plain;
  InputMoments::Scratch scratch;
  const ConstView view{x.bytes().data(), x.dtype(), x.shape()};
  fast.add(view, cpu_kernels(), {2}, scratch);
  plain.add(view, cpu_scalar_kernels(), {2}, scratch);
  fast.flush(cpu_kernels(), {2}, scratch);
  plain.flush(cpu_scalar_kernels(), {2}, scratch);
  for (size_t i = 0; i < plain.sums().size(); ++i) {
    ASSERT_NEAR(fast.sums()[i], plain.sums()[i], 1e-2) << i;
  }
}

TEST(Compensate, WithoutCorrelationItIsPlainRounding) {
  const Tensor w = test::f32_tensor({kOut, kIn}, test::gaussians(4, kOut * kIn));
  std::vector<float> eye(kIn * kIn, 0.0f);
  for (int64_t i = 0; i < kIn; ++i) eye[i * (kIn + 1)] = 1;
  InputMoments moments;
  moments.restore(kIn, eye);
  for (const Format& format : {formats::nvfp4_4over6, formats::nvfp4_16x16}) {
    const QuantizedTensor expected = quantize(cpu_kernels(), w, format, {}, {1});
    const QuantizedTensor actual =
        quantize_compensated(w, format, {moments, 2}, cpu_kernels(), {1});
    EXPECT_TRUE(std::ranges::equal(actual.codes.bytes(), expected.codes.bytes())) << format.name;
    EXPECT_TRUE(std::ranges::equal(actual.scales.bytes(), expected.scales.bytes())) << format.name;
  }
  const QuantizedTensor plain = quantize(cpu_kernels(), w, formats::nvfp4, {}, {1});
  const QuantizedTensor q =
      quantize_compensated(w, formats::nvfp4, {moments, 2}, cpu_kernels(), {1});
  EXPECT_TRUE(std::ranges::equal(q.codes.bytes(), plain.codes.bytes()));
  // Inputs that were never seen, or are no numbers, tell nothing.
  for (const float value : {0.0f, NAN}) {
    moments.restore(kIn, std::vector<float>(kIn * kIn, value));
    const QuantizedTensor same =
        quantize_compensated(w, formats::nvfp4, {moments, 2}, cpu_kernels(), {1});
    EXPECT_TRUE(std::ranges::equal(same.codes.bytes(), plain.codes.bytes()));
  }
}

// Weights that make scales, spreads and errors degenerate, in every format.
TEST(Compensate, DegenerateWeightsStayFiniteAndAreNoWorseThanPlain) {
  const float denormal = 1e-42f, huge = 3e38f;
  const auto filled = [](int64_t rows, float value) {
    return test::f32_tensor({rows, kIn},
                            std::vector<float>(static_cast<size_t>(rows * kIn), value));
  };
  const auto scaled = [](int64_t rows, float factor) {
    std::vector<float> values = test::gaussians(4, rows * kIn);
    for (float& v : values) v *= factor;
    return test::f32_tensor({rows, kIn}, values);
  };
  std::vector<float> one_value(kOut * kIn, 0.0f);
  one_value[kIn + 3] = 1;
  const std::pair<const char*, Tensor> weights[] = {
      {"zero", filled(kOut, 0)},
      {"negative zero", filled(kOut, -0.0f)},
      {"constant", filled(kOut, 0.3f)},
      {"denormal", filled(kOut, denormal)},
      {"tiny", scaled(kOut, 1e-38f)},
      {"huge", filled(kOut, huge)},
      {"huge of both signs", scaled(kOut, 5e37f)},
      {"one value", test::f32_tensor({kOut, kIn}, one_value)},
      {"single row", scaled(1, 1)},
      {"single row of zeros", filled(1, 0)}};
  const InputMoments moments = moments_of(correlated_inputs());
  for (const Format& format : all_formats()) {
    if (!format.quantized()) continue;
    for (const auto& [name, w] : weights) {
      const QuantizedTensor plain = quantize(cpu_kernels(), w, format, {}, {1});
      const QuantizedTensor q = quantize_compensated(w, format, {moments, 2}, cpu_kernels(), {2});
      const Tensor values = dequantize(cpu_kernels(), q, DType::kF32, {1});
      for (const float y : values.as<float>()) {
        ASSERT_TRUE(std::isfinite(y)) << format.name << " " << name;
      }
      const double before = output_error(w, plain, moments, cpu_kernels(), {1});
      if (!std::isfinite(before)) continue;  // the squares of outputs are beyond float
      EXPECT_LE(output_error(w, q, moments, cpu_kernels(), {1}), before)
          << format.name << " " << name;
    }
  }
}

// Whatever moments are, weights are rounded: with their help, or plainly.
TEST(Compensate, MomentsThatAreNoneAreOfNoUse) {
  const Tensor w = test::f32_tensor({kOut, kIn}, test::gaussians(4, kOut * kIn));
  const auto random = test::gaussians(9, kIn * kIn);
  const auto matrix = [&](const auto& entry) {
    std::vector<float> m(kIn * kIn);
    for (int64_t i = 0; i < kIn * kIn; ++i) m[i] = entry(i / kIn, i % kIn);
    return m;
  };
  const std::pair<const char*, std::vector<float>> cases[] = {
      {"zero", matrix([](int64_t, int64_t) { return 0.0f; })},
      {"NaN", matrix([](int64_t, int64_t) { return NAN; })},
      {"infinite", matrix([](int64_t, int64_t) { return INFINITY; })},
      {"one NaN", matrix([](int64_t i, int64_t j) { return i == 5 && j == 3 ? NAN : i == j; })},
      {"negative", matrix([](int64_t i, int64_t j) { return i == j ? -1.0f : 0.0f; })},
      {"indefinite", matrix([](int64_t i, int64_t j) { return i == j ? 1.0f : 5.0f; })},
      {"not symmetric", matrix([&](int64_t i, int64_t j) { return random[i * kIn + j]; })},
      {"huge", matrix([](int64_t i, int64_t j) { return i == j ? 3e38f : 1e38f; })},
      {"tiny", matrix([](int64_t i, int64_t j) { return i == j ? 1e-44f : 0.0f; })}};
  for (const auto& [name, sums] : cases) {
    InputMoments moments;
    moments.restore(kIn, sums);
    for (const Format& format : {formats::fp8, formats::mxfp8, formats::nvfp4}) {
      const QuantizedTensor q = quantize_compensated(w, format, {moments, 2}, cpu_kernels(), {1});
      const Tensor values = dequantize(cpu_kernels(), q, DType::kF32, {1});
      for (const float y : values.as<float>()) {
        ASSERT_TRUE(std::isfinite(y)) << format.name << " " << name;
      }
    }
  }
}

TEST(Search, SpendsBytesWhereTheyBuyMost) {
  // Two groups of the same size; the second one suffers ten times as much.
  const SearchGroup patient{{"a"}, {10, 20, 40}, {10, 20, 40}, {0.01, 0.001, 0}};
  const SearchGroup sensitive{{"b"}, {10, 20, 40}, {10, 20, 40}, {0.1, 0.01, 0}};
  const auto curve = trade_off_curve({patient, sensitive});
  ASSERT_EQ(curve.size(), 5u);
  EXPECT_EQ(curve[0].choice, (std::vector<int>{0, 0}));
  EXPECT_EQ(curve[1].choice, (std::vector<int>{0, 1}));
  EXPECT_EQ(curve[2].choice, (std::vector<int>{1, 1}));
  EXPECT_EQ(curve[3].choice, (std::vector<int>{1, 2}));
  EXPECT_EQ(curve[4].choice, (std::vector<int>{2, 2}));
  for (size_t i = 1; i < curve.size(); ++i) {
    EXPECT_GT(curve[i].bytes, curve[i - 1].bytes);
    EXPECT_GT(curve[i].cosine, curve[i - 1].cosine);
  }
  EXPECT_DOUBLE_EQ(curve[2].cosine, 1 - 0.011);
  EXPECT_EQ(curve[4].bytes, 80);
}

TEST(Search, ACandidateThatIsWorseAndDearerIsNeverChosen) {
  const SearchGroup group{{"a"}, {10, 20, 40}, {10, 20, 40}, {0.01, 0.02, 0}};
  const auto curve = trade_off_curve({group});
  ASSERT_EQ(curve.size(), 2u);
  EXPECT_EQ(curve[1].choice, (std::vector<int>{2}));
}

}  // namespace
}  // namespace halftone
