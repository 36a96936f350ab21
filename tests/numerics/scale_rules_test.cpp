#include "halftone/numerics/scale_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "halftone/base/random.h"
#include "tests/support/extremes.h"

namespace halftone {
namespace {

using test::kInf;
using test::kNan;

using enum ExponentRounding;

TEST(MxScale, KnownVectors) {
  struct Row {
    float amax;
    int floor, ceil, even, rceil;
  };
  const Row rows[] = {
      {1.0f, 119, 119, 119, 119},    {1.75f, 119, 120, 119, 119}, {1.7500001f, 119, 120, 119, 120},
      {1.9375f, 119, 120, 120, 120}, {0.0f, 0, 0, 0, 0},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(mx_scale<E4M3>(row.amax, kFloor), row.floor) << row.amax;
    EXPECT_EQ(mx_scale<E4M3>(row.amax, kCeil), row.ceil) << row.amax;
    EXPECT_EQ(mx_scale<E4M3>(row.amax, kEven), row.even) << row.amax;
    EXPECT_EQ(mx_scale<E4M3>(row.amax, kRCeil), row.rceil) << row.amax;
  }
  EXPECT_EQ(mx_scale<E5M2>(1.0f, kRCeil), 127 - 15);
  EXPECT_EQ(mx_scale<E5M2>(57344.0f, kRCeil), 127);
  EXPECT_EQ(mx_scale<E5M2>(57345.0f, kRCeil), 128);
  for (const auto rounding : {kFloor, kCeil, kEven, kRCeil}) {
    EXPECT_EQ(mx_scale<E4M3>(kInf, rounding), 0xFE);
    EXPECT_EQ(mx_scale<E4M3>(kNan, rounding), 0xFF);
  }
}

// Against the definitions, in long double, over magnitudes of every exponent.
TEST(MxScale, MatchesTheDefinitions) {
  for (uint64_t i = 0; i < 300000; ++i) {
    const float amax = bit_cast<float>(philox_word({5, 0}, i) & 0x7FFFFFFFu);
    if (!std::isfinite(amax) || amax == 0) continue;
    const auto clamped = [](double e) {
      return static_cast<int>(std::min(std::max(e, -127.0), 127.0)) + 127;
    };
    const double exponent = std::floor(std::log2(static_cast<double>(amax)));  // exact in double
    ASSERT_EQ(mx_scale<E4M3>(amax, kFloor), clamped(exponent - 8)) << amax;
    const double ratio = static_cast<double>(amax) / 448.0;
    int e = 0;
    const double fraction = std::frexp(ratio, &e);  // ratio = fraction * 2^e, fraction in [.5, 1)
    ASSERT_EQ(mx_scale<E4M3>(amax, kRCeil), clamped(fraction == 0.5 ? e - 1 : e)) << amax;
  }
}

TEST(MxScale, RCeilNeverSaturatesAndIsTheSmallestSuch) {
  for (uint64_t i = 0; i < 100000; ++i) {
    const float amax = std::fabs(bit_cast<float>(philox_word({6, 0}, i)));
    if (!std::isfinite(amax) || amax < 0x1p-110f) continue;
    const uint8_t code = mx_scale<E4M3>(amax, kRCeil);
    ASSERT_LE(amax * reciprocal_e8m0(code), 448.0f);
    ASSERT_GT(amax * reciprocal_e8m0(static_cast<uint8_t>(code - 1)), 448.0f);
  }
}

TEST(AmaxScale, IsOneWhereThereIsNothingToScale) {
  EXPECT_EQ(amax_scale(0.0f, 448.0f), 1.0f);
  EXPECT_EQ(amax_scale(kInf, 448.0f), 1.0f);
  EXPECT_EQ(amax_scale(kNan, 448.0f), 1.0f);
  EXPECT_EQ(amax_scale(448.0f, 448.0f), 1.0f);
  EXPECT_EQ(amax_scale(1.0f, 448.0f), 1.0f / 448.0f);
}

TEST(AmaxScale, ReciprocalIsAlwaysFiniteAndNormal) {
  for (const float amax : {1e-45f, 0x1p-149f, 0x1p-126f, 1e-30f, 3.4028235e38f}) {
    const float scale = amax_scale(amax, 448.0f);
    EXPECT_TRUE(std::isnormal(scale)) << amax;
    EXPECT_TRUE(std::isnormal(1.0f / scale)) << amax;
    const float g = nvfp4_global_scale(amax, kNvfp4MaxBlockScale);
    EXPECT_TRUE(std::isnormal(nvfp4_reciprocal(0x1p-9f, g))) << amax;
    EXPECT_TRUE(std::isnormal(nvfp4_reciprocal(448.0f, g))) << amax;
  }
}

TEST(Nvfp4Scale, BlockScaleOfTheKnownVector) {
  const float g = nvfp4_global_scale(12.0f, kNvfp4MaxBlockScale);
  EXPECT_EQ(g, 12.0f / 2688.0f);
  EXPECT_EQ(nvfp4_block_scale(3.0f, 6.0f, g, 0.0f), 0x6E);   // 112
  EXPECT_EQ(nvfp4_block_scale(12.0f, 6.0f, g, 0.0f), 0x7E);  // the largest block has 448
}

TEST(Nvfp4Scale, LowerClampAndSpecials) {
  EXPECT_EQ(nvfp4_block_scale(0.0f, 6.0f, 1.0f, 0.0f), 0x00);
  EXPECT_EQ(nvfp4_block_scale(0.0f, 6.0f, 1.0f, 0x1p-6f), 0x08);
  EXPECT_EQ(nvfp4_block_scale(0.0f, 6.0f, 1.0f, 0x1p-9f), 0x01);
  EXPECT_EQ(nvfp4_block_scale(kInf, 6.0f, 1.0f, 0.0f), 0x7E);
  EXPECT_EQ(nvfp4_block_scale(kNan, 6.0f, 1.0f, 0x1p-6f), 0x7F);  // NaN stays visible
  EXPECT_EQ(nvfp4_reciprocal(0.0f, 1.0f), 0.0f);
}

}  // namespace
}  // namespace halftone
