// The scalar reference against vectors, definitions and the properties that users rely on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "halftone/base/error.h"
#include "halftone/kernels/quantize.h"
#include "halftone/numerics/minifloat.h"
#include "tests/support/extremes.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

using test::kInf;
using test::kNan;

using test::bytes_of;
using test::f32_tensor;

QuantizedTensor quantize(const Tensor& x, const Format& format,
                         const QuantizeOptions& options = {}) {
  return halftone::quantize(cpu_scalar_kernels(), x, format, options, {});
}
std::vector<float> values(const QuantizedTensor& q) {
  const Tensor y = dequantize(cpu_scalar_kernels(), q, DType::kF32, {});
  return {y.as<float>().begin(), y.as<float>().end()};
}
float first_scale(const QuantizedTensor& q) { return q.scales.as<float>()[0]; }

TEST(Nvfp4, KnownBlock) {
  std::vector<float> x = {.1f, -.2f, .3f,   .4f,  -.5f, .6f,   .7f,  -.8f,
                          .9f, 1.f,  -1.1f, 1.2f, 1.3f, -1.4f, 1.5f, -3.f};
  x.resize(32, 0.0f);
  x[31] = 12.0f;  // makes the tensor's amax 12 and g = 12/2688
  const QuantizedTensor q = quantize(f32_tensor({1, 32}, x), formats::nvfp4);
  EXPECT_EQ(q.global_scale.as<float>()[0], 12.0f / 2688.0f);
  EXPECT_EQ(bytes_of(q.scales), (std::vector<uint8_t>{0x6E, 0x7E}));
  const std::vector<uint8_t> expected = {0x90, 0x21, 0x2A, 0xB3, 0x44, 0x4C, 0xD5, 0xF5};
  const auto codes = bytes_of(q.codes);
  EXPECT_EQ(std::vector<uint8_t>(codes.begin(), codes.begin() + 8), expected);
  EXPECT_FLOAT_EQ(values(q)[15], -3.0f);
  EXPECT_FLOAT_EQ(values(q)[31], 12.0f);
}

TEST(Nvfp4, LowerClampOfBlockScalesIsAParameter) {
  std::vector<float> x(32, 0.0f);
  x[0] = 1e-6f;
  x[16] = 1.0f;
  Format f = formats::nvfp4;
  EXPECT_EQ(bytes_of(quantize(f32_tensor({1, 32}, x), f).scales)[0], 0x00);
  f.min_block_scale = 0x1p-9f;
  EXPECT_EQ(bytes_of(quantize(f32_tensor({1, 32}, x), f).scales)[0], 0x01);
  f.min_block_scale = 0x1p-6f;
  EXPECT_EQ(bytes_of(quantize(f32_tensor({1, 32}, x), f).scales)[0], 0x08);
}

TEST(Nvfp4, TilesMakeRowAndColumnCopiesEqual) {
  const Tensor x = f32_tensor({40, 50}, test::gaussians(3, 2000));  // ragged tiles on purpose
  Format tiles = formats::nvfp4;
  tiles.tile_rows = 16;
  EXPECT_EQ(values(quantize(x, tiles, {.axis = 1})), values(quantize(x, tiles, {.axis = 0})));
  EXPECT_NE(values(quantize(x, formats::nvfp4, {.axis = 1})),
            values(quantize(x, formats::nvfp4, {.axis = 0})));
}

double squared_error(const Tensor& x, const Format& format) {
  const auto y = values(quantize(x, format));
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += std::pow(x.as<float>()[i] - double{y[i]}, 2);
  return sum;
}

TEST(Nvfp4, FourOverSixChoosesTheBetterScalePerBlock) {
  Format better = formats::nvfp4;
  better.four_over_six = true;
  // 5 lies in the widest gap of E2M1 (4 to 6) when 6 is the largest, and on the grid when it is 4.
  std::vector<float> x(16, 5.0f);
  x[0] = 6.0f;
  const auto q = quantize(f32_tensor({1, 16}, x), better);
  EXPECT_EQ(bytes_of(q.codes)[0] & 0xF, 6);  // the largest value took code 6, the value 4
  const Tensor random = f32_tensor({64, 64}, test::gaussians(4, 4096));
  EXPECT_LT(squared_error(random, better), 0.9 * squared_error(random, formats::nvfp4));
}

TEST(Fp8, ScalesPerTensorAndPerRow) {
  const Tensor x = f32_tensor({2, 2}, {1.0f, -448.0f, 0.5f, 896.0f});
  EXPECT_EQ(first_scale(quantize(x, formats::fp8_tensor)), 2.0f);
  const auto rows = quantize(x, formats::fp8);
  EXPECT_EQ(rows.scales.shape(), (Shape{2, 1}));
  EXPECT_EQ(rows.scales.as<float>()[0], 1.0f);
  EXPECT_EQ(rows.scales.as<float>()[1], 2.0f);
  EXPECT_EQ(bytes_of(rows.codes), (std::vector<uint8_t>{0x38, 0xFE, 0x28, 0x7E}));
  EXPECT_EQ(first_scale(quantize(x, formats::fp8_e5m2_tensor)), 896.0f / 57344.0f);
}

TEST(Fp8, ZeroRowsAndSpecialsGetScaleOne) {
  const Tensor x = f32_tensor({4, 2}, {0.0f, -0.0f, kInf, 1.0f, kNan, 2.0f, 1e-44f, 0.0f});
  const auto q = quantize(x, formats::fp8);
  for (int r = 0; r < 3; ++r) EXPECT_EQ(q.scales.as<float>()[r], 1.0f);
  EXPECT_EQ(q.scales.as<float>()[3], kMinScale);  // tiny rows do not divide by a subnormal
  EXPECT_EQ(bytes_of(q.codes), (std::vector<uint8_t>{0x00, 0x80, 0x7E, 0x38, 0x7F, 0x40, 0, 0}));
}

TEST(Mxfp8, SpecialsStayInTheirBlock) {
  std::vector<float> x(96, 1.0f);
  x[0] = kNan;
  x[40] = kInf;
  const auto q = quantize(f32_tensor({1, 96}, x), formats::mxfp8);
  EXPECT_EQ(bytes_of(q.scales), (std::vector<uint8_t>{0xFF, 0xFE, 119}));
  const auto y = values(q);
  EXPECT_TRUE(std::isnan(y[5]));  // NaN marks its block, as the MX specification allows
  EXPECT_EQ(y[40], kInf);
  EXPECT_EQ(y[64], 1.0f);
}

TEST(Mxfp8, RoundingModesChangeTheScale) {
  Format f = formats::mxfp8;
  const Tensor x = f32_tensor({1, 1}, {1.9375f});
  f.rounding = ExponentRounding::kFloor;
  EXPECT_EQ(bytes_of(quantize(x, f).scales)[0], 119);
  EXPECT_EQ(values(quantize(x, f))[0], 1.75f);  // FLOOR saturates
  f.rounding = ExponentRounding::kRCeil;
  EXPECT_EQ(bytes_of(quantize(x, f).scales)[0], 120);
}

class EveryFormat : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(, EveryFormat,
                         testing::ValuesIn(std::vector<Format>{
                             formats::fp8, formats::fp8_tensor, formats::fp8_e5m2,
                             formats::fp8_e5m2_tensor, formats::mxfp8, formats::mxfp8_e5m2,
                             formats::nvfp4}),
                         [](const auto& tested) {
                           std::string name(tested.param.name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(EveryFormat, OtherAxisIsTheTransposeQuantized) {
  const int64_t rows = 37, cols = 53;
  const auto x = test::gaussians(11, rows * cols);
  std::vector<float> transposed(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) transposed[c * rows + r] = x[r * cols + c];
  }
  const auto along = quantize(f32_tensor({cols, rows}, transposed), GetParam());
  const auto across = quantize(f32_tensor({rows, cols}, x), GetParam(), {.axis = 0});
  EXPECT_EQ(bytes_of(across.codes), bytes_of(along.codes));
  EXPECT_EQ(bytes_of(across.scales), bytes_of(along.scales));
  const auto y = values(across), y_transposed = values(along);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      ASSERT_EQ(y[r * cols + c], y_transposed[c * rows + r]);  // in the orientation that came in
    }
  }
}

TEST_P(EveryFormat, ErrorOfEachValueIsWithinHalfAStepOfItsScale) {
  const Tensor x = f32_tensor({5, 67}, test::gaussians(12, 5 * 67));
  const auto y = values(quantize(x, GetParam()));
  const bool fp4 = GetParam().element == ElementType::kE2M1;
  const bool e5m2 = GetParam().element == ElementType::kE5M2;
  const float relative = fp4 ? 0.26f : e5m2 ? 0.126f : 0.0626f;  // half a step at a binade's start
  int different = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const float v = x.as<float>()[i];
    EXPECT_NEAR(y[i], v, std::fabs(v) * relative + (fp4 ? 0.2f : 2e-3f)) << i;
    different += y[i] != v;
  }
  EXPECT_GT(different, static_cast<int>(y.size()) / 2);  // it did round
}

TEST_P(EveryFormat, EmptyTensors) {
  for (const Shape& shape : {Shape{0, 0}, Shape{0, 32}, Shape{3, 0}}) {
    for (const int axis : {0, 1}) {
      const auto q = quantize(Tensor::empty(DType::kBF16, shape), GetParam(), {.axis = axis});
      EXPECT_EQ(q.codes.byte_size(), 0);
      EXPECT_TRUE(values(q).empty());
      if (GetParam().span == ScaleSpan::kTensor) {
        EXPECT_EQ(first_scale(q), 1.0f);
      }
    }
  }
}

TEST_P(EveryFormat, AllZeroStaysZeroWithItsSign) {
  std::vector<float> x(3 * 33, 0.0f);
  x[1] = -0.0f;
  const auto y = values(quantize(f32_tensor({3, 33}, x), GetParam()));
  for (const float v : y) ASSERT_EQ(v, 0.0f);
  EXPECT_TRUE(std::signbit(y[1]));
  EXPECT_FALSE(std::signbit(y[0]));
}

TEST_P(EveryFormat, StochasticRoundingAveragesToTheInput) {
  const int64_t n = 64;
  const auto x = test::gaussians(13, n);
  std::vector<double> mean(n, 0.0);
  const int runs = 400;
  for (int run = 0; run < runs; ++run) {
    const auto y = values(quantize(f32_tensor({1, n}, x), GetParam(),
                                   {.stochastic = PhiloxKey{static_cast<uint64_t>(run), 0}}));
    for (int64_t i = 0; i < n; ++i) mean[i] += y[i] / runs;
  }
  double bias = 0, nearest_bias = 0;
  const auto nearest = values(quantize(f32_tensor({1, n}, x), GetParam()));
  // Values that saturate (MX RCEIL never does, FP8's largest does by a rounding) are not unbiased.
  for (int64_t i = 0; i < n; ++i) {
    bias += std::pow(mean[i] - x[i], 2);
    nearest_bias += std::pow(nearest[i] - x[i], 2);
  }
  EXPECT_LT(bias, 0.02 * nearest_bias);  // 1/400 of the variance, with room
}

TEST_P(EveryFormat, ResultDoesNotDependOnOtherRowsExceptThroughTheTensorScale) {
  const auto x = test::gaussians(14, 2 * 64);
  const std::vector<float> row(x.begin() + 64, x.end());
  QuantizeOptions options;
  if (GetParam().span == ScaleSpan::kTensor || GetParam().global_scale)
    options.static_scale = 0.01f;
  const auto both = quantize(f32_tensor({2, 64}, x), GetParam(), options);
  const auto alone = quantize(f32_tensor({1, 64}, row), GetParam(), options);
  const auto codes = bytes_of(both.codes);
  EXPECT_EQ(
      std::vector<uint8_t>(codes.begin() + static_cast<int64_t>(codes.size()) / 2, codes.end()),
      bytes_of(alone.codes));
}

TEST(StaticScale, IsUsedAsGivenAndCheckedForSense) {
  const Tensor x = f32_tensor({1, 2}, {1.0f, 1000.0f});
  const auto q = quantize(x, formats::fp8_tensor, {.static_scale = 0.5f});
  EXPECT_EQ(first_scale(q), 0.5f);
  EXPECT_EQ(values(q), (std::vector<float>{1.0f, 224.0f}));  // what lies beyond saturates
  const auto four = quantize(x, formats::nvfp4, {.static_scale = 0.25f});
  EXPECT_EQ(four.global_scale.as<float>()[0], 0.25f);
  const auto rows = quantize(x, formats::fp8, {.static_scale = 0.5f});
  for (const float scale : rows.scales.as<float>()) EXPECT_EQ(scale, 0.5f);
  EXPECT_TRUE(std::ranges::equal(rows.codes.bytes(), q.codes.bytes()));
  EXPECT_THROW(quantize(x, formats::mxfp8, {.static_scale = 1.0f}), Error);
  for (const float bad : {0.0f, -1.0f, kNan, kInf, 1e-44f}) {
    EXPECT_THROW(quantize(x, formats::fp8_tensor, {.static_scale = bad}), Error) << bad;
  }
}

TEST(Quantize, RefusesWhatItCannotTake) {
  EXPECT_THROW(quantize(Tensor::zeros(DType::kI32, {2, 2}), formats::fp8), Error);
  EXPECT_THROW(quantize(Tensor::zeros(DType::kF32, {2, 2, 2}), formats::fp8), Error);
  EXPECT_THROW(quantize(Tensor::zeros(DType::kF32, {2, 2}), formats::bf16), Error);
  Format wrong = formats::nvfp4;
  wrong.tile_rows = 3;
  EXPECT_THROW(quantize(Tensor::zeros(DType::kF32, {2, 2}), wrong), Error);
}

TEST(Amax, OrdersNanAboveInfAboveNumbers) {
  const auto of = [](std::initializer_list<float> x) {
    return amax(cpu_scalar_kernels(), f32_tensor({1, static_cast<int64_t>(x.size())}, x), {});
  };
  EXPECT_EQ(of({}), 0.0f);
  EXPECT_EQ(of({1.0f, -3.0f, 2.0f}), 3.0f);
  EXPECT_EQ(of({1.0f, -kInf}), kInf);
  EXPECT_TRUE(std::isnan(of({kInf, kNan, 1.0f})));
}

}  // namespace
}  // namespace halftone
