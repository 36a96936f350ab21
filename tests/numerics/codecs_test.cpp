// Every code, every bf16 value and the known vectors, against an oracle that searches all codes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "halftone/base/random.h"
#include "halftone/numerics/bf16.h"
#include "halftone/numerics/minifloat.h"
#include "halftone/numerics/scale_rules.h"
#include "tests/support/extremes.h"

namespace halftone {
namespace {

using test::kInf;
using test::kNan;

// The value of a code by the definition of its format, in double.
template <class F>
double oracle_value(uint32_t code) {
  const uint32_t magnitude = code & (F::kSignBit - 1);
  const uint32_t exponent = magnitude >> F::kMantissaBits;
  const uint32_t mantissa = magnitude & ((1u << F::kMantissaBits) - 1);
  const double fraction = std::ldexp(mantissa, -F::kMantissaBits);
  const double value = exponent == 0
                           ? std::ldexp(fraction, 1 - F::kBias)
                           : std::ldexp(1.0 + fraction, static_cast<int>(exponent) - F::kBias);
  return (code & F::kSignBit) != 0 ? -value : value;
}

// The nearest finite code, ties to the even one, found by trying all of them.
template <class F>
uint8_t oracle_encode(float x) {
  if (std::isnan(x)) return F::kNanCode;
  const uint32_t sign = std::signbit(x) ? F::kSignBit : 0;
  uint32_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  const double target = std::min(std::fabs(double{x}), double{F::kMax});
  for (uint32_t code = 0; code <= F::kMaxCode; ++code) {
    const double distance = std::fabs(oracle_value<F>(code) - target);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<uint8_t>(best | sign);
}

template <class F>
class Codec : public testing::Test {};
using Elements = testing::Types<E4M3, E5M2, E2M1>;
TYPED_TEST_SUITE(Codec, Elements);

TYPED_TEST(Codec, EveryCodeDecodesToItsDefinitionAndBack) {
  using F = TypeParam;
  for (uint32_t code = 0; code < 2 * F::kSignBit; ++code) {
    const float value = decode<F>(static_cast<uint8_t>(code));
    const uint32_t magnitude = code & (F::kSignBit - 1);
    if (magnitude <= F::kMaxCode) {
      EXPECT_EQ(static_cast<double>(value), oracle_value<F>(code)) << code;
      EXPECT_EQ(std::signbit(value), code >= F::kSignBit) << code;
      EXPECT_EQ(encode<F>(value), code);
      EXPECT_EQ(encode_stochastic<F>(value, 0u), code);  // exact values never move
    } else if (std::is_same_v<F, E5M2> && magnitude == 0x7C) {
      EXPECT_EQ(std::fabs(value), kInf);
      EXPECT_EQ(encode<F>(value, Overflow::kSpecial), code);
    } else {
      EXPECT_TRUE(std::isnan(value)) << code;
    }
  }
  EXPECT_EQ(decode<F>(F::kMaxCode), F::kMax);
}

TYPED_TEST(Codec, EveryBf16InputRoundsToTheNearestCode) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = to_float(bf16{static_cast<uint16_t>(bits)});
    ASSERT_EQ(encode<TypeParam>(x), oracle_encode<TypeParam>(x)) << x << " bits " << bits;
  }
}

// Halfway points between neighbours and the floats next to them are where rounding goes wrong.
TYPED_TEST(Codec, EveryTieAndItsNeighbours) {
  using F = TypeParam;
  for (uint32_t code = 0; code < F::kMaxCode; ++code) {
    const double middle = (oracle_value<F>(code) + oracle_value<F>(code + 1)) / 2;
    const auto tie = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(tie), middle);
    for (const float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, kInf)}) {
      EXPECT_EQ(encode<F>(x), oracle_encode<F>(x)) << x;
      EXPECT_EQ(encode<F>(-x), oracle_encode<F>(-x)) << -x;
    }
  }
}

TYPED_TEST(Codec, RandomFloatsOfEveryExponent) {
  for (uint64_t i = 0; i < 200000; ++i) {
    const float x = bit_cast<float>(philox_word({1, 2}, i));
    ASSERT_EQ(encode<TypeParam>(x), oracle_encode<TypeParam>(x)) << x;
  }
}

TYPED_TEST(Codec, StochasticRoundingIsBracketedAndUnbiased) {
  using F = TypeParam;
  for (uint64_t i = 0; i < 2000; ++i) {
    // Magnitudes over the whole range of the format, subnormals included.
    const double u = philox_word({3, 0}, 2 * i) * 0x1p-32;
    const auto x = static_cast<float>(
        F::kMax * std::exp2(-u * (F::kMaxExponent + F::kBias + F::kMantissaBits)));
    const double low = oracle_value<F>(encode_stochastic<F>(x, 0xFFFFFFFFu));
    const double high = oracle_value<F>(encode_stochastic<F>(x, 0u));
    ASSERT_LE(low, x);
    ASSERT_GE(high, x);
    if (low == high) continue;
    // It rounds up exactly for random words below the fraction, so the switch point is the mean.
    const double fraction = (x - low) / (high - low);
    const auto threshold = static_cast<uint32_t>(fraction * 0x1p32);
    if (threshold > 4) {
      EXPECT_EQ(oracle_value<F>(encode_stochastic<F>(x, threshold - 4)), high);
    }
    if (threshold < 0xFFFFFFF0u) {
      EXPECT_EQ(oracle_value<F>(encode_stochastic<F>(x, threshold + 4)), low);
    }
  }
  EXPECT_EQ(encode_stochastic<F>(kInf, 5), F::kMaxCode);
  EXPECT_EQ(encode_stochastic<F>(-kInf, 5), F::kMaxCode | F::kSignBit);
  EXPECT_EQ(encode_stochastic<F>(kNan, 5), F::kNanCode);
  EXPECT_EQ(encode_stochastic<F>(-0.0f, 0), F::kSignBit);
}

TEST(E4M3, KnownVectors) {
  EXPECT_EQ(encode<E4M3>(17.0f), 0x58);
  EXPECT_EQ(encode<E4M3>(19.0f), 0x5A);
  EXPECT_EQ(encode<E4M3>(1.0625f), 0x38);
  EXPECT_EQ(encode<E4M3>(1.1875f), 0x3A);
  EXPECT_EQ(encode<E4M3>(0x1p-10f), 0x00);
  EXPECT_EQ(encode<E4M3>(3 * 0x1p-10f), 0x02);
  EXPECT_EQ(encode<E4M3>(15 * 0x1p-10f), 0x08);
  EXPECT_EQ(encode<E4M3>(-0.0f), 0x80);
  EXPECT_EQ(encode<E4M3>(464.0f), 0x7E);
  EXPECT_EQ(encode<E4M3>(464.0f, Overflow::kSpecial), 0x7E);
  EXPECT_EQ(encode<E4M3>(464.01f), 0x7E);
  EXPECT_EQ(encode<E4M3>(464.01f, Overflow::kSpecial), 0x7F);
  EXPECT_EQ(encode<E4M3>(kInf), 0x7E);
  EXPECT_EQ(encode<E4M3>(kNan), 0x7F);
  EXPECT_EQ(encode<E4M3>(-kNan), 0x7F);
  EXPECT_EQ(decode<E4M3>(0x7E), 448.0f);
  EXPECT_EQ(decode<E4M3>(0x08), 0x1p-6f);
  EXPECT_EQ(decode<E4M3>(0x01), 0x1p-9f);
}

TEST(E5M2, KnownVectors) {
  EXPECT_EQ(encode<E5M2>(61439.0f), 0x7B);
  EXPECT_EQ(encode<E5M2>(61440.0f), 0x7B);
  EXPECT_EQ(encode<E5M2>(61440.0f, Overflow::kSpecial), 0x7C);
  EXPECT_EQ(encode<E5M2>(0x1p-17f), 0x00);
  EXPECT_EQ(encode<E5M2>(3 * 0x1p-17f), 0x02);
  EXPECT_EQ(encode<E5M2>(1.125f), 0x3C);
  EXPECT_EQ(encode<E5M2>(1.375f), 0x3E);
  EXPECT_EQ(decode<E5M2>(0x7B), 57344.0f);
  EXPECT_EQ(decode<E5M2>(0x04), 0x1p-14f);
  EXPECT_EQ(decode<E5M2>(0x01), 0x1p-16f);
}

TEST(E2M1, KnownVectors) {
  const std::vector<std::pair<float, int>> vectors = {{.25f, 0}, {.75f, 2}, {1.25f, 2}, {1.75f, 4},
                                                      {2.5f, 4}, {3.5f, 6}, {5.0f, 6},  {-.25f, 8}};
  for (const auto& [x, code] : vectors) EXPECT_EQ(encode<E2M1>(x), code) << x;
  EXPECT_EQ(encode<E2M1>(kInf), 7);
  EXPECT_EQ(encode<E2M1>(kNan), 7);
  const std::vector<float> values = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 8; ++code) EXPECT_EQ(decode<E2M1>(code), values[code]);
  EXPECT_EQ(pack_e2m1(0x9, 0x2), 0x29);  // the first value is the low nibble
}

TEST(E8M0, KnownVectors) {
  EXPECT_EQ(encode_e8m0(0.0f), 0x00);
  EXPECT_EQ(encode_e8m0(0x1p-127f), 0x00);
  EXPECT_EQ(encode_e8m0(std::nextafter(0x1p-127f, 1.0f)), 0x01);
  EXPECT_EQ(encode_e8m0(1.0f), 0x7F);
  EXPECT_EQ(encode_e8m0(std::nextafter(1.0f, 2.0f)), 0x80);
  EXPECT_EQ(encode_e8m0(3e38f), 0xFE);
  EXPECT_EQ(encode_e8m0(kInf), 0xFE);
  EXPECT_EQ(encode_e8m0(kNan), 0xFF);
}

TEST(E8M0, EveryCodeAndItsReciprocal) {
  for (int code = 0; code < 255; ++code) {
    const float value = decode_e8m0(static_cast<uint8_t>(code));
    EXPECT_EQ(static_cast<double>(value), std::ldexp(1.0, code - 127));
    EXPECT_EQ(encode_e8m0(value), code);
    EXPECT_EQ(static_cast<double>(reciprocal_e8m0(static_cast<uint8_t>(code))),
              std::ldexp(1.0, 127 - code));
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(0xFF)));
  EXPECT_TRUE(std::isnan(reciprocal_e8m0(0xFF)));
}

TEST(E8M0, EveryBf16InputRoundsUp) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const float x = to_float(bf16{static_cast<uint16_t>(bits)});
    const double exponent = x == 0 ? -127 : std::ceil(std::log2(static_cast<double>(x)));
    const int expected = static_cast<int>(std::min(std::max(exponent, -127.0), 127.0)) + 127;
    ASSERT_EQ(encode_e8m0(x), expected) << x;
  }
}

TEST(Bf16, EveryValueSurvivesAndRoundingIsToNearestEven) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const bf16 value{static_cast<uint16_t>(bits)};
    const float x = to_float(value);
    if (std::isnan(x)) {
      ASSERT_EQ(to_bf16(x).bits, 0x7FFF);
    } else {
      ASSERT_EQ(to_bf16(x).bits, bits);
    }
    if ((bits & 0x7FFF) >= 0x7F80) continue;
    // Halfway to the next value up in magnitude goes to the even one, a hair more goes up.
    const float half = bit_cast<float>((bits << 16) | 0x8000u);
    ASSERT_EQ(to_bf16(half).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(to_bf16(bit_cast<float>((bits << 16) | 0x8001u)).bits, bits + 1);
    ASSERT_EQ(to_bf16(bit_cast<float>((bits << 16) | 0x7FFFu)).bits, bits);
  }
}

TEST(Fp16, EveryValueDecodesToItsDefinition) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = to_float(fp16{static_cast<uint16_t>(bits)});
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double mantissa = (bits & 1023) / 1024.0;
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(x), mantissa != 0);
      ASSERT_EQ(std::isinf(x), mantissa == 0);
    } else {
      const double value =
          exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1 + mantissa, exponent - 15);
      ASSERT_EQ(static_cast<double>(std::fabs(x)), value);
    }
    if (!std::isnan(x)) {
      ASSERT_EQ(std::signbit(x), bits >= 0x8000);
    }
  }
}

// The products that make emulation in bf16 exact.
TEST(ExactEmulation, ScaledCodesFitInBf16) {
  const auto exact = [](float x) { return to_float(to_bf16(x)) == x; };
  for (int k = -117; k <= 119; ++k) {
    for (uint32_t code = 0; code <= E4M3::kMaxCode; ++code) {
      ASSERT_TRUE(exact(decode<E4M3>(static_cast<uint8_t>(code)) * std::ldexp(1.0f, k)))
          << code << " " << k;
    }
  }
  for (uint32_t scale = 0; scale <= E4M3::kMaxCode; ++scale) {
    for (uint32_t code = 0; code < 16; ++code) {
      ASSERT_TRUE(exact(decode<E2M1>(static_cast<uint8_t>(code)) *
                        decode<E4M3>(static_cast<uint8_t>(scale))));
    }
  }
}

}  // namespace
}  // namespace halftone
