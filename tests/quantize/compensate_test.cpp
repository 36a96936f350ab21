// Compensated rounding against its definition and against plain rounding; the trade-off curve.
#include "halftone/quantize/compensate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "halftone/kernels/quantize.h"
#include "halftone/quantize/search.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

constexpr int64_t kRows = 400, kIn = 96, kOut = 24;

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
  constexpr int64_t kAtATime = 100;
  static_assert(kAtATime <= InputMoments::kMostRows);
  for (int64_t r = 0; r < kRows; r += kAtATime) {
    const Tensor part = x.rows(r, r + kAtATime);
    moments.add({part.bytes().data(), part.dtype(), part.shape()}, cpu_kernels(), {2});
  }
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
  const Tensor x = correlated_inputs(),
               w = test::f32_tensor({kOut, kIn}, test::gaussians(4, kOut * kIn));
  const InputMoments moments = moments_of(x);
  for (const Format& format :
       {formats::fp8, formats::fp8_tensor, formats::fp8_e5m2, formats::mxfp8, formats::nvfp4}) {
    const QuantizedTensor plain = quantize(cpu_kernels(), w, format, {}, {1});
    const QuantizedTensor q = quantize_compensated(w, format, moments, cpu_kernels(), {2});
    const double before = output_error_by_hand(x, w, plain), after = output_error_by_hand(x, w, q);
    EXPECT_LT(after, 0.5 * before) << format.name;
    EXPECT_GT(after, 0) << format.name;
    EXPECT_NEAR(output_error(w, q, moments, cpu_kernels(), {2}), after, 1e-3 * after)
        << format.name;
    EXPECT_EQ(q.format, format);
  }
}

TEST(Compensate, TheTableWithoutFastProductsGivesTheSameSums) {
  const Tensor x = correlated_inputs().rows(0, 100);
  InputMoments fast, plain;
  const ConstView view{x.bytes().data(), x.dtype(), x.shape()};
  fast.add(view, cpu_kernels(), {2});
  plain.add(view, cpu_scalar_kernels(), {2});
  for (size_t i = 0; i < plain.sums().size(); ++i) {
    ASSERT_NEAR(fast.sums()[i], plain.sums()[i], 1e-2) << i;
  }
}

TEST(Compensate, WithoutCorrelationItIsPlainRounding) {
  const Tensor w = test::f32_tensor({kOut, kIn}, test::gaussians(4, kOut * kIn));
  std::vector<float> eye(kIn * kIn, 0.0f);
  for (int64_t i = 0; i < kIn; ++i) eye[i * (kIn + 1)] = 1;
  InputMoments moments;
  moments.restore(kIn, kIn, eye);
  const QuantizedTensor plain = quantize(cpu_kernels(), w, formats::nvfp4, {}, {1});
  const QuantizedTensor q = quantize_compensated(w, formats::nvfp4, moments, cpu_kernels(), {1});
  EXPECT_TRUE(std::ranges::equal(q.codes.bytes(), plain.codes.bytes()));
  // Inputs that were never seen, or are no numbers, tell nothing.
  for (const float value : {0.0f, NAN}) {
    moments.restore(kIn, 0, std::vector<float>(kIn * kIn, value));
    const QuantizedTensor same =
        quantize_compensated(w, formats::nvfp4, moments, cpu_kernels(), {1});
    EXPECT_TRUE(std::ranges::equal(same.codes.bytes(), plain.codes.bytes()));
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
