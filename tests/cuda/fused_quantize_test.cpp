// What generated kernels write in low precision equals the scalar quantizer, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "halftone/kernels/quantize.h"
#include "halftone/numerics/swizzle.h"
#include "tests/cuda/device_tensors.h"
#include "tests/support/backend.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::DeviceTensor;

constexpr float kStatic = 0.013f;

std::vector<Format> written_formats() {
  std::vector<Format> all = {formats::fp8, formats::fp8_e5m2, formats::mxfp8, formats::mxfp8_e5m2};
  for (Format f : {formats::fp8, formats::fp8_tensor, formats::fp8_e5m2_tensor, formats::nvfp4}) {
    f.static_scale = true;
    all.push_back(f);
  }
  for (Format f : {formats::mxfp8, formats::nvfp4}) {
    f.static_scale = f.global_scale;
    f.swizzled = true;
    all.push_back(f);
  }
  all.push_back(formats::nvfp4);
  all.back().static_scale = true;
  all.back().min_block_scale = 0x1p-6f;
  return all;
}

// Values of every size, and where asked some that are no numbers.
Tensor values(int64_t rows, int64_t cols, DType dtype, bool finite) {
  Tensor x = test::random_tensor({1, rows, cols}, 17, DType::kF32);
  auto v = x.mutable_as<float>();
  for (size_t i = 0; i < v.size(); ++i) v[i] *= std::ldexp(1.0f, static_cast<int>(i * 7 % 23) - 16);
  if (!finite) {
    v[3] = NAN;
    v[v.size() / 2] = INFINITY;
    v[v.size() - 1] = -INFINITY;
  }
  if (dtype == DType::kF32) return x;
  Tensor y = Tensor::empty(dtype, x.shape());
  for (size_t i = 0; i < v.size(); ++i) y.mutable_as<bf16>()[i] = to_bf16(v[i]);
  return y;
}

void expect_bits(const Tensor& actual, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.byte_size(), expected.byte_size()) << what;
  const auto a = actual.bytes(), b = expected.bytes();
  const auto [at, end] = std::mismatch(a.begin(), a.end(), b.begin());
  EXPECT_EQ(at, a.end()) << what << ", byte " << at - a.begin();
}

Tensor as_bytes(const std::vector<uint8_t>& bytes) {
  Tensor t = Tensor::empty(DType::kU8, {static_cast<int64_t>(bytes.size())});
  std::copy(bytes.begin(), bytes.end(), t.mutable_as<uint8_t>().begin());
  return t;
}

void expect_equal_fused(const Tensor& x, const Format& format, int64_t begin) {
  const Stream stream = test::tested_stream();
  const int64_t rows = x.shape()[1], wide = x.shape()[2], cols = wide - begin;
  // The last columns of something wider, through a step that changes nothing.
  FusedRowsAttributes how;
  how.rows = how.rows_per_item = rows;
  how.inputs = {{RowSource::kPerRow, cols, begin, wide}};
  RowStep same;
  same.function = RowFunction::kCast;
  same.length = same.width = cols;
  same.dtype = x.dtype();
  RowStep step = same;
  step.function = RowFunction::kQuantize;
  step.operands = {1, 0, 0};
  step.output = 0;
  step.format = format;
  step.static_scale = format.static_scale ? kStatic : 0;
  how.steps = {same, step};

  Format plain = format;
  plain.static_scale = plain.swizzled = false;
  Tensor columns = Tensor::empty(x.dtype(), {rows, cols});
  const int64_t size = bits_of(x.dtype()) / 8;
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(columns.mutable_bytes().data() + r * cols * size,
                x.bytes().data() + (r * wide + begin) * size, static_cast<size_t>(cols * size));
  }
  QuantizeOptions options;
  if (format.static_scale) options.static_scale = kStatic;
  const QuantizedTensor expected = quantize(cpu_scalar_kernels(), columns, plain, options, {1});
  Tensor scales = expected.scales;
  if (format.swizzled) {
    const auto from = expected.scales.bytes();
    const auto* bytes = reinterpret_cast<const uint8_t*>(from.data());
    scales = as_bytes(swizzle_scales({bytes, from.size()}, rows, format.scales_per_row(cols)));
  }

  const DeviceTensor input(x, stream);
  const DeviceTensor codes(expected.codes.dtype(), expected.codes.shape(), stream);
  // Rows of a tile that are not there stay as they are.
  const DeviceTensor to(
      format.swizzled
          ? DeviceTensor(as_bytes(std::vector<uint8_t>(static_cast<size_t>(scales.byte_size()), 0)),
                         stream)
          : DeviceTensor(scales.dtype(), scales.shape(), stream));
  const DeviceTensor global(DType::kF32, {1}, stream);
  const ConstView in{input.data<void>(), x.dtype(), x.shape()};
  const View out{codes.data<void>(), x.dtype(),           {1, rows, cols}, &format,
                 to.data<void>(),    global.data<float>()};
  test::launch_and_wait(test::tested_kernels().fused_rows, FusedRowsArgs{&how, {&in, 1}, {&out, 1}},
                        stream);
  const std::string what =
      fmt::format("{}{}{} {}x{} {}", format.name, format.static_scale ? " static" : "",
                  format.swizzled ? " swizzled" : "", rows, cols, name_of(x.dtype()));
  expect_bits(codes.download(), expected.codes, what + " codes");
  expect_bits(to.download(), scales, what + " scales");
  if (format.global_scale) expect_bits(global.download(), expected.global_scale, what + " global");
}

TEST(CudaFusedQuantize, EqualsTheScalarQuantizer) {
  for (const Format& format : written_formats()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const auto& [rows, cols] : {std::pair{7, 64}, {130, 96}, {33, 3840}, {300, 160}}) {
        for (const bool finite : {true, false}) {
          if (!finite && !format.static_scale) continue;  // held to it by CudaQuantize
          expect_equal_fused(values(rows, cols, dtype, finite), format, 0);
        }
      }
      expect_equal_fused(values(20, 67, dtype, true), format, 3);  // one value at a time
    }
  }
}

TEST(CudaQuantize, BlockScalesInTiles) {
  for (Format format : {formats::mxfp8, formats::nvfp4}) {
    const int64_t rows = 200, cols = 160, across = format.scales_per_row(cols);
    const Tensor x = test::random_tensor({rows, cols}, 3, DType::kBF16);
    const QuantizedTensor expected = quantize(cpu_scalar_kernels(), x, format, {}, {1});
    format.swizzled = true;
    const Stream stream = test::tested_stream();
    const DeviceTensor input(x, stream),
        codes(expected.codes.dtype(), expected.codes.shape(), stream),
        global(DType::kF32, {1}, stream),
        scales(as_bytes(std::vector<uint8_t>(
                   static_cast<size_t>(swizzled_scale_bytes(rows, across)), 0)),
               stream);
    QuantizeArgs args;
    args.x = {input.data<void>(), x.dtype(), rows, cols, cols};
    args.format = format;
    args.codes = codes.data<uint8_t>();
    args.scales = scales.data<void>();
    args.global_scale = global.data<float>();
    test::launch_and_wait(test::tested_kernels().quantize, args, stream);
    const auto from = expected.scales.bytes();
    const auto* bytes = reinterpret_cast<const uint8_t*>(from.data());
    expect_bits(scales.download(), as_bytes(swizzle_scales({bytes, from.size()}, rows, across)),
                std::string(format.name));
    expect_bits(codes.download(), expected.codes, std::string(format.name));
  }
}

}  // namespace
}  // namespace halftone
