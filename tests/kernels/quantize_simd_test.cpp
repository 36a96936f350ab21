// The fast table against the scalar reference, bit for bit, for every instruction set of this CPU.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "halftone/kernels/quantize.h"
#include "halftone/numerics/minifloat.h"
#include "tests/support/tensors.h"

#ifdef HALFTONE_HAS_HIGHWAY
#include "halftone/kernels/cpu/simd_spans.h"
#include "hwy/highway.h"
#endif

namespace halftone {
namespace {

using test::bytes_of;

// Instruction sets to try: all that this CPU has, or the build's only table.
std::vector<int64_t> instruction_sets() {
#ifdef HALFTONE_HAS_HIGHWAY
#if HWY_ARCH_X86
  std::vector<int64_t> targets;
  for (const int64_t target : {HWY_SSE4, HWY_AVX2, HWY_AVX3}) {
    if ((hwy::SupportedTargets() & target) != 0) targets.push_back(target);
  }
  return targets;
#else
  return {hwy::SupportedTargets() & -hwy::SupportedTargets()};  // the best one
#endif
#else
  return {0};
#endif
}

std::string name_of_target(int64_t target) {
#ifdef HALFTONE_HAS_HIGHWAY
  return hwy::TargetName(target);
#else
  return "scalar" + std::to_string(target);
#endif
}

class SimdQuantize : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
#ifdef HALFTONE_HAS_HIGHWAY
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    ASSERT_STREQ(simd::instruction_set(), hwy::TargetName(GetParam()));  // the switch worked
#endif
  }
  void TearDown() override {
#ifdef HALFTONE_HAS_HIGHWAY
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
#endif
  }
};
INSTANTIATE_TEST_SUITE_P(, SimdQuantize, testing::ValuesIn(instruction_sets()),
                         [](const auto& tested) { return name_of_target(tested.param); });

std::vector<Format> every_variant() {
  std::vector<Format> variants = {formats::fp8, formats::fp8_tensor, formats::fp8_e5m2,
                                  formats::fp8_e5m2_tensor, formats::nvfp4};
  for (const auto rounding : {ExponentRounding::kFloor, ExponentRounding::kCeil,
                              ExponentRounding::kEven, ExponentRounding::kRCeil}) {
    for (Format f : {formats::mxfp8, formats::mxfp8_e5m2}) {
      f.rounding = rounding;
      variants.push_back(f);
    }
  }
  Format clamp = formats::nvfp4, tiles = formats::nvfp4, better = formats::nvfp4;
  clamp.min_block_scale = 0x1p-6f;
  tiles.tile_rows = 16;
  better.four_over_six = true;
  variants.insert(variants.end(), {clamp, tiles, better});
  return variants;
}

std::string describe(const Format& f, const Tensor& x, const QuantizeOptions& options) {
  return fmt::format("{} rounding {} clamp {} tile {} 4/6 {} on {} {} axis {} stochastic {}",
                     f.name, to_string(f.rounding), f.min_block_scale, f.tile_rows, f.four_over_six,
                     name_of(x.dtype()), x.shape(), options.axis, options.stochastic.has_value());
}

// NaN has many encodings as F32; as BF16 it has one.
void expect_same_values(const Tensor& a, const Tensor& b, const std::string& what) {
  ASSERT_EQ(a.byte_size(), b.byte_size());
  if (a.dtype() == DType::kBF16) {
    ASSERT_EQ(bytes_of(a), bytes_of(b)) << what;
    return;
  }
  for (int64_t i = 0; i < a.numel(); ++i) {
    const float x = a.as<float>()[i], y = b.as<float>()[i];
    if (std::isnan(x) && std::isnan(y)) continue;
    ASSERT_EQ(bit_cast<uint32_t>(x), bit_cast<uint32_t>(y)) << what << " at " << i;
  }
}

void expect_equal(const Tensor& x, const Format& format, const QuantizeOptions& options) {
  const std::string what = describe(format, x, options);
  const auto expected = quantize(cpu_scalar_kernels(), x, format, options, {});
  for (const int threads : {1, 3}) {
    const auto actual = quantize(cpu_kernels(), x, format, options, {threads});
    ASSERT_EQ(bytes_of(actual.codes), bytes_of(expected.codes)) << what;
    ASSERT_EQ(bytes_of(actual.scales), bytes_of(expected.scales)) << what;
    ASSERT_EQ(bytes_of(actual.global_scale), bytes_of(expected.global_scale)) << what;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      expect_same_values(dequantize(cpu_kernels(), actual, dtype, {threads}),
                         dequantize(cpu_scalar_kernels(), expected, dtype, {}), what);
    }
  }
}

void expect_equal_in_every_variant(const Tensor& x) {
  for (const Format& format : every_variant()) {
    for (const int axis : {0, 1}) {
      expect_equal(x, format, {.axis = axis});
      expect_equal(x, format, {.axis = axis, .stochastic = PhiloxKey{5, 1}});
      if (format.span == ScaleSpan::kTensor || format.global_scale) {
        expect_equal(x, format, {.axis = axis, .static_scale = 0.037f});
      }
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

Tensor gaussian_tensor(DType dtype, const Shape& shape, uint64_t seed) {
  const auto values = test::gaussians(seed, shape.numel());
  if (dtype == DType::kF32) return test::f32_tensor(shape, values);
  if (dtype == DType::kBF16) return test::bf16_tensor(shape, values);
  Tensor t = test::random_bits(DType::kF16, shape, seed);  // finite halves of every size
  for (fp16& h : t.mutable_as<fp16>()) h.bits &= 0xBFFF;
  return t;
}

TEST_P(SimdQuantize, EveryVariantDtypeAndRaggedShape) {
  const Shape shapes[] = {{1, 1}, {3, 15}, {2, 16}, {5, 33}, {17, 47}, {1, 4099}, {70, 66}};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : shapes) {
      expect_equal_in_every_variant(gaussian_tensor(dtype, shape, 20));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(SimdQuantize, EveryBf16InputInEveryVariant) {
  Tensor x = Tensor::empty(DType::kBF16, {256, 256});
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    // Magnitudes of one block lie together, so that blocks of every size occur.
    x.mutable_as<bf16>()[bits] = {static_cast<uint16_t>(bits)};
  }
  for (const Format& format : every_variant()) {
    expect_equal(x, format, {});
    expect_equal(x, format, {.axis = 0});
    if (HasFatalFailure()) return;
  }
}

// Without scales that move values around: every input meets the element codec as it is.
TEST_P(SimdQuantize, EveryBf16InputThroughEveryElementFormat) {
  Tensor x = Tensor::empty(DType::kBF16, {1, 65536});
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    x.mutable_as<bf16>()[bits] = {static_cast<uint16_t>(bits)};
  }
  for (const Format& format : {formats::fp8_tensor, formats::fp8_e5m2_tensor}) {
    expect_equal(x, format, {.static_scale = 1.0f});
    expect_equal(x, format, {.static_scale = 1.0f, .stochastic = PhiloxKey{1, 0}});
    const auto q = quantize(cpu_kernels(), x, format, {.static_scale = 1.0f}, {});
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const float value = to_float(bf16{static_cast<uint16_t>(bits)});
      const uint8_t code =
          format.element == ElementType::kE4M3 ? encode<E4M3>(value) : encode<E5M2>(value);
      ASSERT_EQ(bytes_of(q.codes.reshape({65536, 1}).rows(bits, bits + 1))[0], code) << value;
    }
  }
}

// A block whose largest value is 6 has scale 1 under g = 1, so the other 15 meet E2M1 as they are.
TEST_P(SimdQuantize, EveryBf16InputUpToSixThroughE2m1) {
  std::vector<uint16_t> inputs;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if (std::fabs(to_float(bf16{static_cast<uint16_t>(bits)})) <= 6.0f)
      inputs.push_back(static_cast<uint16_t>(bits));
  }
  const auto blocks = static_cast<int64_t>((inputs.size() + 14) / 15);
  Tensor x = Tensor::zeros(DType::kBF16, {1, blocks * 16});
  for (int64_t b = 0; b < blocks; ++b) x.mutable_as<bf16>()[b * 16] = to_bf16(6.0f);
  for (size_t i = 0; i < inputs.size(); ++i)
    x.mutable_as<bf16>()[i / 15 * 16 + 1 + i % 15] = {inputs[i]};
  expect_equal(x, formats::nvfp4, {.static_scale = 1.0f});
  const auto codes =
      bytes_of(quantize(cpu_kernels(), x, formats::nvfp4, {.static_scale = 1.0f}, {}).codes);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t at = i / 15 * 16 + 1 + i % 15;
    ASSERT_EQ(codes[at / 2] >> (at % 2 * 4) & 0xF, encode<E2M1>(to_float(bf16{inputs[i]})))
        << inputs[i];
  }
}

// A matrix inside a wider one: what lies beside it must not leak in.
TEST_P(SimdQuantize, RowsWithAStride) {
  const Tensor wide = test::random_bits(DType::kF32, {20, 100}, 31);
  for (const Format& format : every_variant()) {
    for (const bool transpose : {false, true}) {
      const Shape shape = transpose ? Shape{40, 20} : Shape{20, 40};
      std::vector<uint8_t> bytes[2];
      for (const Kernels* kernels : {&cpu_scalar_kernels(), &cpu_kernels()}) {
        QuantizedTensor q = QuantizedTensor::empty(format, shape);
        float global = 0;
        QuantizeArgs args;
        args.x = {wide.as<float>().data() + 7, DType::kF32, 20, 40, 100};
        args.transpose = transpose;
        args.format = format;
        args.codes = reinterpret_cast<uint8_t*>(q.codes.mutable_bytes().data());
        args.scales = q.scales.mutable_bytes().data();
        args.global_scale = &global;
        kernels->quantize.launch(args, {2});
        auto& all = bytes[kernels == &cpu_kernels()];
        all = bytes_of(q.codes);
        const auto scales = bytes_of(q.scales);
        all.insert(all.end(), scales.begin(), scales.end());
      }
      ASSERT_EQ(bytes[0], bytes[1]) << format.name << " transposed " << transpose;
    }
  }
}

TEST_P(SimdQuantize, AnyBitsAtAll) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    expect_equal_in_every_variant(test::random_bits(dtype, {33, 70}, 21));
    if (HasFatalFailure()) return;
  }
}

TEST_P(SimdQuantize, TinyAndHugeValuesWithZeroBlocks) {
  std::vector<float> x(48 * 64);
  for (size_t i = 0; i < x.size(); ++i) {
    const int exponent = static_cast<int>(philox_word({22, 0}, i / 16) % 280) - 149;
    const bool zero = philox_word({22, 1}, i / 16) % 4 == 0;
    x[i] = zero ? -0.0f : std::ldexp(static_cast<float>(test::gaussian(23, i)), exponent);
  }
  expect_equal_in_every_variant(test::f32_tensor({48, 64}, x));
}

TEST_P(SimdQuantize, EmptyTensors) {
  for (const Shape& shape : {Shape{0, 0}, Shape{0, 32}, Shape{3, 0}}) {
    expect_equal_in_every_variant(Tensor::empty(DType::kBF16, shape));
  }
}

TEST_P(SimdQuantize, AmaxMatches) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : {Shape{0, 5}, Shape{1, 1}, Shape{7, 130}, Shape{3, 4099}}) {
      for (const Tensor& x :
           {gaussian_tensor(dtype, shape, 24), test::random_bits(dtype, shape, 25)}) {
        const float expected = amax(cpu_scalar_kernels(), x, {});
        for (const int threads : {1, 3}) {
          const float actual = amax(cpu_kernels(), x, {threads});
          if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(actual));
          } else {
            EXPECT_EQ(actual, expected);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace halftone
