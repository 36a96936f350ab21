// The GPU's quantizers against the scalar reference, bit for bit.
#include "halftone/kernels/quantize.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "halftone/kernels/cuda/dequantize.h"
#include "tests/cuda/device_tensors.h"
#include "tests/support/backend.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

using test::bytes_of;
using test::DeviceTensor;
using test::tested_kernels;
using test::tested_stream;

std::vector<Format> every_variant() {
  std::vector<Format> variants;
  for (const Format& f : all_formats()) {
    if (!f.quantized()) continue;
    if (f.scale != ScaleType::kE8M0) {
      variants.push_back(f);
      continue;
    }
    for (const auto rounding : {ExponentRounding::kFloor, ExponentRounding::kCeil,
                                ExponentRounding::kEven, ExponentRounding::kRCeil}) {
      variants.push_back(f);
      variants.back().rounding = rounding;
    }
  }
  for (const float clamp : {0x1p-6f, 0x1p-9f}) {
    variants.push_back(formats::nvfp4);
    variants.back().min_block_scale = clamp;
  }
  variants.push_back(formats::nvfp4);
  variants.back().tile_rows = 16;
  variants.push_back(formats::nvfp4);
  variants.back().four_over_six = true;
  return variants;
}

struct DeviceQuantized {
  DeviceTensor codes, scales, global_scale;
};

QuantizeArgs quantize_args(const ConstMatrix& x, const Format& format,
                           const QuantizeOptions& options) {
  QuantizeArgs args;
  args.x = x;
  args.transpose = options.axis == 0;
  args.format = format;
  args.static_scale = options.static_scale;
  args.stochastic = options.stochastic;
  return args;
}

// Quantizes on the device into parts like those of `like`.
DeviceQuantized quantize_on_device(QuantizeArgs args, const QuantizedTensor& like) {
  const Stream stream = tested_stream();
  DeviceQuantized q{{like.codes.dtype(), like.codes.shape(), stream},
                    {like.scales.dtype(), like.scales.shape(), stream},
                    {DType::kF32, {1}, stream}};
  args.codes = q.codes.data<uint8_t>();
  args.scales = q.scales.data<void>();
  args.global_scale = q.global_scale.data<float>();
  test::launch_and_wait(tested_kernels().quantize, args, stream);
  return q;
}

// NaN has many encodings as F32; as BF16 it has one.
void expect_same_values(const Tensor& a, const Tensor& b, const std::string& what) {
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

void expect_same_dequantized(const QuantizedTensor& expected, const DeviceQuantized& q,
                             const std::string& what) {
  const Stream stream = tested_stream();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const DeviceTensor y(dtype, expected.shape, stream);
    DequantizeArgs args;
    args.format = expected.format;
    args.codes = q.codes.data<uint8_t>();
    args.scales = q.scales.data<void>();
    args.global_scale = q.global_scale.data<float>();
    args.transpose = expected.axis == 0;
    args.y = {y.data<void>(), dtype, expected.shape[0], expected.shape[1], expected.shape[1]};
    test::launch_and_wait(tested_kernels().dequantize, args, stream);
    expect_same_values(y.download(), dequantize(cpu_scalar_kernels(), expected, dtype, {}), what);
  }
}

// Codes times block scales, from the reference with the other scales set to 1.
void expect_same_decoded(QuantizedTensor expected, const DeviceQuantized& q,
                         const std::string& what) {
  const Stream stream = tested_stream();
  const int64_t rows = expected.stored_rows(), cols = expected.stored_cols();
  const DeviceTensor y(DType::kBF16, {rows, cols}, stream);
  ConstView view;
  view.data = q.codes.data<void>();
  view.shape = {rows, cols};
  view.format = &expected.format;
  view.scales = q.scales.data<void>();
  cuda::decode_blocks(view, rows, cols, y.data<bf16>(), stream);
  stream.device->synchronize();
  expected.shape = {rows, cols};  // as it is stored
  expected.axis = 1;
  for (Tensor* scale : {&expected.scales, &expected.global_scale}) {
    if (scale->dtype() != DType::kF32 || !scale->defined()) continue;
    Tensor ones = Tensor::empty(DType::kF32, scale->shape());
    for (float& one : ones.mutable_as<float>()) one = 1;
    *scale = ones;
  }
  expect_same_values(y.download(), dequantize(cpu_scalar_kernels(), expected, DType::kBF16, {}),
                     what + ", decoded");
}

std::string describe(const Format& f, const Tensor& x, const QuantizeOptions& options) {
  return fmt::format("{} rounding {} clamp {} tile {} 4/6 {} of {} {} along {}, stochastic {}",
                     f.name, to_string(f.rounding), f.min_block_scale, f.tile_rows, f.four_over_six,
                     name_of(x.dtype()), x.shape(), options.axis, options.stochastic.has_value());
}

void expect_equal(const Tensor& x, const Format& format, const QuantizeOptions& options) {
  const std::string what = describe(format, x, options);
  const auto expected = quantize(cpu_scalar_kernels(), x, format, options, {});
  const DeviceTensor on_device(x, tested_stream());
  const DeviceQuantized q = quantize_on_device(
      quantize_args({on_device.data<void>(), x.dtype(), x.shape()[0], x.shape()[1], x.shape()[1]},
                    format, options),
      expected);
  ASSERT_EQ(bytes_of(q.scales.download()), bytes_of(expected.scales)) << what;
  ASSERT_EQ(bytes_of(q.codes.download()), bytes_of(expected.codes)) << what;
  if (format.global_scale) {
    ASSERT_EQ(bytes_of(q.global_scale.download()), bytes_of(expected.global_scale)) << what;
  }
  expect_same_dequantized(expected, q, what);
  expect_same_decoded(expected, q, what);
}

void expect_equal_in_every_variant(const Tensor& x) {
  for (const Format& format : every_variant()) {
    for (const int axis : {1, 0}) {
      expect_equal(x, format, {.axis = axis});
      expect_equal(x, format, {.axis = axis, .stochastic = PhiloxKey{5, 1}});
      if (format.span == ScaleSpan::kTensor || format.global_scale)
        expect_equal(x, format, {.axis = axis, .static_scale = 0.037f});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

Tensor gaussian_tensor(DType dtype, const Shape& shape, uint64_t seed) {
  const auto values = test::gaussians(seed, shape.numel());
  if (dtype == DType::kF32) return test::f32_tensor(shape, values);
  if (dtype == DType::kBF16) return test::bf16_tensor(shape, values);
  Tensor t = test::random_bits(DType::kF16, shape, seed);
  for (fp16& h : t.mutable_as<fp16>()) h.bits &= 0xBFFF;  // finite
  return t;
}

TEST(CudaQuantize, EveryVariantDtypeAndShape) {
  const Shape shapes[] = {{1, 1},   {3, 15},   {2, 16},  {5, 33},
                          {17, 47}, {1, 4099}, {70, 66}, {48, 96}};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : shapes) {
      expect_equal_in_every_variant(gaussian_tensor(dtype, shape, 20));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CudaQuantize, MatricesOfManyBlocksOfThreads) {
  for (const Format& format : every_variant()) {
    expect_equal(gaussian_tensor(DType::kBF16, {160, 3840}, 26), format, {});
    expect_equal(gaussian_tensor(DType::kBF16, {3840, 160}, 27), format, {.axis = 0});
    if (HasFatalFailure()) return;
  }
}

TEST(CudaQuantize, EveryBf16InEveryVariant) {
  Tensor x = Tensor::empty(DType::kBF16, {256, 256});
  for (uint32_t bits = 0; bits < 65536; ++bits)
    x.mutable_as<bf16>()[bits] = {static_cast<uint16_t>(bits)};
  expect_equal_in_every_variant(x);
}

// Under scales of 1, every value meets the element codec as it is.
TEST(CudaQuantize, EveryBf16ThroughEveryCodec) {
  Tensor x = Tensor::empty(DType::kBF16, {1, 65536});
  for (uint32_t bits = 0; bits < 65536; ++bits)
    x.mutable_as<bf16>()[bits] = {static_cast<uint16_t>(bits)};
  for (const Format& format : {formats::fp8_tensor, formats::fp8_e5m2_tensor, formats::nvfp4}) {
    expect_equal(x, format, {.static_scale = 1.0f});
    expect_equal(x, format, {.static_scale = 1.0f, .stochastic = PhiloxKey{1, 0}});
  }
}

// What bf16 does not have: values next to ties, and any bits at all.
TEST(CudaQuantize, FloatsNextToTiesAndAnyBits) {
  std::vector<float> x;
  const auto add = [&](float low, float high) {
    const float tie = low + (high - low) / 2;
    for (const float v : {low, tie, std::nextafter(tie, low), std::nextafter(tie, high)}) {
      x.push_back(v);
      x.push_back(-v);
    }
  };
  for (int code = 0; code < 0x7E; ++code) {
    add(decode<E4M3>(static_cast<uint8_t>(code)), decode<E4M3>(static_cast<uint8_t>(code + 1)));
  }
  for (int code = 0; code < 0x7B; ++code)
    add(decode<E5M2>(static_cast<uint8_t>(code)), decode<E5M2>(static_cast<uint8_t>(code + 1)));
  for (int code = 0; code < 7; ++code)
    add(decode<E2M1>(static_cast<uint8_t>(code)), decode<E2M1>(static_cast<uint8_t>(code + 1)));
  const auto ties = test::f32_tensor({1, static_cast<int64_t>(x.size())}, x);
  for (const Format& format : {formats::fp8_tensor, formats::fp8_e5m2_tensor, formats::nvfp4})
    expect_equal(ties, format, {.static_scale = 1.0f});
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    expect_equal_in_every_variant(test::random_bits(dtype, {33, 96}, 21));
    if (HasFatalFailure()) return;
  }
}

TEST(CudaQuantize, TinyAndHugeValuesWithZeroBlocks) {
  std::vector<float> x(48 * 64);
  for (size_t i = 0; i < x.size(); ++i) {
    const int exponent = static_cast<int>(philox_word({22, 0}, i / 16) % 280) - 149;
    const bool zero = philox_word({22, 1}, i / 16) % 4 == 0;
    x[i] = zero ? -0.0f : std::ldexp(static_cast<float>(test::gaussian(23, i)), exponent);
  }
  expect_equal_in_every_variant(test::f32_tensor({48, 64}, x));
}

TEST(CudaQuantize, EmptyTensors) {
  for (const Shape& shape : {Shape{0, 0}, Shape{0, 32}, Shape{3, 0}})
    expect_equal_in_every_variant(Tensor::empty(DType::kBF16, shape));
}

// A matrix inside a wider one: what lies beside it must not leak in, aligned or not.
TEST(CudaQuantize, RowsWithAStride) {
  const Tensor wide = test::random_bits(DType::kF32, {20, 100}, 31);
  const DeviceTensor on_device(wide, tested_stream());
  for (const Format& format : every_variant()) {
    for (const int axis : {1, 0}) {
      for (const int64_t begin : {7, 8}) {
        Tensor narrow = Tensor::empty(DType::kF32, {20, 64});
        for (int64_t i = 0; i < narrow.numel(); ++i)
          narrow.mutable_as<float>()[i] = wide.as<float>()[i / 64 * 100 + begin + i % 64];
        const auto expected = quantize(cpu_scalar_kernels(), narrow, format, {.axis = axis}, {});
        const DeviceQuantized q = quantize_on_device(
            quantize_args({on_device.data<float>() + begin, DType::kF32, 20, 64, 100}, format,
                          {.axis = axis}),
            expected);
        const std::string what = describe(format, narrow, {.axis = axis});
        ASSERT_EQ(bytes_of(q.scales.download()), bytes_of(expected.scales)) << what;
        ASSERT_EQ(bytes_of(q.codes.download()), bytes_of(expected.codes)) << what;
      }
    }
  }
}

TEST(CudaQuantize, Amax) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape :
         {Shape{0, 5}, Shape{1, 1}, Shape{7, 130}, Shape{3, 4099}, Shape{500, 3000}}) {
      for (const Tensor& x :
           {gaussian_tensor(dtype, shape, 24), test::random_bits(dtype, shape, 25)}) {
        const DeviceTensor on_device(x, tested_stream()), result(DType::kF32, {1}, tested_stream());
        AmaxArgs args;
        args.x = {on_device.data<void>(), dtype, shape[0], shape[1], shape[1]};
        args.amax = result.data<float>();
        test::launch_and_wait(tested_kernels().amax, args, tested_stream());
        const float expected = amax(cpu_scalar_kernels(), x, {});
        ASSERT_EQ(bit_cast<uint32_t>(result.download().as<float>()[0]),
                  bit_cast<uint32_t>(expected))
            << name_of(dtype) << " " << shape.str();
      }
    }
  }
}

}  // namespace
}  // namespace halftone
