// The error that quantizing the operands of a product costs must lie in a band: too large is a
// bug, and too small means that quantization was skipped.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "halftone/kernels/quantize.h"
#include "halftone/tensor/float_values.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

// A fixed draw. Many rows: spikes are rare, and a handful of them decides that column of the table,
// which varies by some 15% between draws.
constexpr int64_t kM = 1024, kN = 16, kK = 3072;

enum Data { kGaussian, kOutliers, kSpikes, kDataCount };

// X [M, K] and W [N, K] as bf16; outliers and spikes are the activations'.
Tensor activations(Data data) {
  auto x = test::gaussians(100, kM * kK);
  for (int64_t i = 0; i < kM * kK; ++i) {
    if (data == kOutliers && i % kK % (kK / 16) == 7) x[i] *= 30;  // 16 of 3072 channels
    if (data == kSpikes && test::uniform(1002, i) < 1e-4) x[i] *= 300;
  }
  return test::bf16_tensor({kM, kK}, x);
}

std::vector<float> through(const Tensor& x, const Format& format) {
  const auto q = quantize(cpu_kernels(), x, format, {}, {2});
  const Tensor y = dequantize(cpu_kernels(), q, DType::kF32, {2});
  return {y.as<float>().begin(), y.as<float>().end()};
}

// X W^T accumulated in double.
std::vector<double> product(const std::vector<float>& x, const std::vector<float>& w) {
  std::vector<double> y(kM * kN);
  for (int64_t m = 0; m < kM; ++m) {
    for (int64_t n = 0; n < kN; ++n) {
      double sum[8] = {};
      for (int64_t k = 0; k < kK; k += 8) {
        for (int64_t i = 0; i < 8; ++i) sum[i] += double{x[m * kK + k + i]} * w[n * kK + k + i];
      }
      for (const double s : sum) y[m * kN + n] += s;
    }
  }
  return y;
}

double relative_error(const std::vector<double>& y, const std::vector<double>& reference) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    difference += std::pow(y[i] - reference[i], 2);
    norm += std::pow(reference[i], 2);
  }
  return std::sqrt(difference / norm);
}

class Bands : public testing::Test {
 protected:
  void SetUp() override { HT_SKIP_WHERE_SANITIZED(); }
  static void SetUpTestSuite() {
    if (test::kSanitized) return;
    inputs_ = new Inputs;
    inputs_->w = test::bf16_tensor({kN, kK}, test::gaussians(101, kN * kK));
    for (int d = 0; d < kDataCount; ++d) {
      inputs_->x[d] = activations(static_cast<Data>(d));
      inputs_->exact[d] = product(float_values(inputs_->x[d]), float_values(inputs_->w));
    }
  }
  static void TearDownTestSuite() { delete inputs_; }

  struct Expected {
    double gaussian, outliers, spikes;
  };

  // Both operands quantized; a null format leaves one as it is.
  static void expect_band(const Format* x_format, const Format* w_format, Expected expected) {
    const auto w = w_format ? through(inputs_->w, *w_format) : float_values(inputs_->w);
    const double wanted[] = {expected.gaussian, expected.outliers, expected.spikes};
    for (int d = 0; d < kDataCount; ++d) {
      if (wanted[d] == 0) continue;
      const auto x = x_format ? through(inputs_->x[d], *x_format) : float_values(inputs_->x[d]);
      const double error = relative_error(product(x, w), inputs_->exact[d]);
      EXPECT_NEAR(error, wanted[d], 0.1 * wanted[d]) << "data " << d;
    }
  }

  struct Inputs {
    Tensor w;
    Tensor x[kDataCount];
    std::vector<double> exact[kDataCount];
  };
  static inline Inputs* inputs_ = nullptr;
};

TEST_F(Bands, E4m3PerTensor) {
  expect_band(&formats::fp8_tensor, &formats::fp8_tensor, {3.75e-2, 3.75e-2, 3.46e-2});
  expect_band(&formats::fp8_tensor, nullptr, {2.65e-2, 0, 0});
}
TEST_F(Bands, E4m3PerRowAndChannel) {
  expect_band(&formats::fp8, &formats::fp8, {3.74e-2, 3.44e-2, 2.82e-2});
}
TEST_F(Bands, E4m3WeightOnly) { expect_band(nullptr, &formats::fp8, {2.65e-2, 2.68e-2, 2.70e-2}); }
TEST_F(Bands, E5m2TimesE4m3) {
  expect_band(&formats::fp8_e5m2_tensor, &formats::fp8_tensor, {5.94e-2, 5.91e-2, 5.49e-2});
  expect_band(&formats::fp8_e5m2_tensor, nullptr, {5.27e-2, 0, 0});
}
TEST_F(Bands, Mxfp8RCeil) {
  expect_band(&formats::mxfp8, &formats::mxfp8, {3.77e-2, 3.79e-2, 3.52e-2});
}
TEST_F(Bands, Mxfp8Floor) {
  Format floor = formats::mxfp8;
  floor.rounding = ExponentRounding::kFloor;
  expect_band(&floor, &floor, {4.15e-2, 4.95e-2, 4.85e-2});
}
TEST_F(Bands, Nvfp4) {
  expect_band(&formats::nvfp4, &formats::nvfp4, {1.35e-1, 1.27e-1, 1.04e-1});
  expect_band(&formats::nvfp4, nullptr, {9.50e-2, 0, 0});
}
TEST_F(Bands, Nvfp4TiledWeights) {
  Format tiles = formats::nvfp4;
  tiles.tile_rows = 16;
  expect_band(&formats::nvfp4, &tiles, {1.46e-1, 1.38e-1, 1.17e-1});
}
TEST_F(Bands, Nvfp4WeightOnly) {
  expect_band(nullptr, &formats::nvfp4, {9.53e-2, 9.50e-2, 9.60e-2});
}
TEST_F(Bands, Nvfp4FourOverSix) {
  Format better = formats::nvfp4;
  better.four_over_six = true;
  expect_band(&better, &better, {1.22e-1, 1.18e-1, 9.38e-2});
}

}  // namespace
}  // namespace halftone
