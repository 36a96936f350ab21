#include "halftone/tensor/tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <set>

#include "halftone/tensor/float_values.h"
#include "halftone/tensor/quantized_tensor.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

TEST(DType, NamesRoundTripAndSizesAreSane) {
  std::set<std::string_view> names;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_TRUE(names.insert(name_of(dtype)).second);
    EXPECT_EQ(find_dtype(name_of(dtype)), dtype);
    EXPECT_GE(bits_of(dtype), 4);
    EXPECT_EQ(alignment_of(dtype) & (alignment_of(dtype) - 1), 0);
  }
  EXPECT_EQ(bits_of(DType::kF4), 4);
  EXPECT_EQ(bits_of(DType::kC64), 64);
  EXPECT_EQ(name_of(DType::kF8E4M3), "F8_E4M3");
  EXPECT_FALSE(find_dtype("f32").has_value());
}

TEST(Shape, CountsAndPrints) {
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ((Shape{2, 3, 4}).numel(), 24);
  EXPECT_EQ((Shape{2, 0, 4}).numel(), 0);
  EXPECT_EQ((Shape{2, 3}).str(), "[2, 3]");
  EXPECT_EQ(Shape{}.str(), "[]");
  EXPECT_EQ((Shape{2, 3})[-1], 3);
  EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
}

TEST(Shape, OverflowIsNoticed) {
  const int64_t big = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE((Shape{big, 2}).checked_numel().has_value());
  EXPECT_EQ((Shape{big}).checked_numel(), big);
  EXPECT_FALSE((Shape{big}).checked_bytes(DType::kU8).has_value());  // in bits
  EXPECT_FALSE((Shape{int64_t{1} << 32, int64_t{1} << 31}).checked_bytes(DType::kF32).has_value());
}

TEST(Shape, SubByteElementsMustFillWholeBytes) {
  EXPECT_EQ((Shape{4}).checked_bytes(DType::kF4), 2);
  EXPECT_FALSE((Shape{3}).checked_bytes(DType::kF4).has_value());
  EXPECT_EQ((Shape{4}).checked_bytes(DType::kF6E2M3), 3);
}

TEST(Tensor, ViewsShareMemoryAndKeepItAlive) {
  Tensor view;
  {
    Tensor x = test::f32_tensor({3, 2}, {0, 1, 2, 3, 4, 5});
    view = x.rows(1, 3).reshape({4});
    x.mutable_as<float>()[2] = 9;
  }
  EXPECT_EQ(std::vector<float>(view.as<float>().begin(), view.as<float>().end()),
            (std::vector<float>{9, 3, 4, 5}));
  EXPECT_EQ(view.byte_size(), 16);
}

TEST(Tensor, OwnedMemoryIsAlignedForVectors) {
  const Tensor x = Tensor::empty(DType::kU8, {3});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x.bytes().data()) % 64, 0u);
  EXPECT_FALSE(Tensor().defined());
  EXPECT_EQ(Tensor::zeros(DType::kF32, {0, 4}).numel(), 0);
}

TEST(Tensor, AnImpossibleSizeIsAnError) {
  const Shape huge{int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_NE(test::error_of([&] { Tensor::empty(DType::kF32, huge); }), "(no error)");
}

TEST(Storage, MapsFilesReadOnly) {
  const test::TempDir dir;
  test::write_file(dir / "x", "hello");
  test::write_file(dir / "empty", "");
  const auto storage = Storage::map_file(dir / "x");
  EXPECT_TRUE(storage->mapped());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(storage->bytes().data()), 5), "hello");
  EXPECT_TRUE(Storage::map_file(dir / "empty")->bytes().empty());
  EXPECT_EQ(test::error_of([&] { Storage::map_file(dir / "none"); }),
            (dir / "none").string() + ": no such file");
  EXPECT_EQ(test::error_of([&] { Storage::map_file(dir.path()); }),
            dir.path().string() + ": is a folder, not a file");
}

TEST(FloatValues, AreExactInEveryHighPrecision) {
  const float values[] = {1.5f, -0.0f, 0x1p-14f, 300};  // of all three
  Tensor f32 = Tensor::empty(DType::kF32, {2, 2}), b16 = Tensor::empty(DType::kBF16, {2, 2}),
         f16 = Tensor::empty(DType::kF16, {2, 2});
  const uint16_t halves[] = {0x3E00, 0x8000, 0x0400, 0x5CB0};
  std::copy_n(values, 4, f32.mutable_as<float>().begin());
  for (int i = 0; i < 4; ++i) b16.mutable_as<bf16>()[i] = to_bf16(values[i]);
  std::memcpy(f16.mutable_bytes().data(), halves, sizeof halves);
  for (const Tensor& x : {f32, b16, f16}) {
    const Tensor wide = as_f32(x);
    EXPECT_EQ(wide.shape(), x.shape());
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(float_values(x)[i]), std::bit_cast<uint32_t>(values[i]));
      EXPECT_EQ(std::bit_cast<uint32_t>(wide.as<float>()[i]), std::bit_cast<uint32_t>(values[i]));
    }
  }
  EXPECT_EQ(as_f32(f32).bytes().data(), f32.bytes().data());
}

TEST(QuantizedTensor, PartsHaveTheDocumentedShapes) {
  const auto nvfp4 = QuantizedTensor::empty(formats::nvfp4, {5, 33});
  EXPECT_EQ(nvfp4.codes.shape(), (Shape{5, 17}));
  EXPECT_EQ(nvfp4.codes.dtype(), DType::kU8);
  EXPECT_EQ(nvfp4.scales.shape(), (Shape{5, 3}));
  EXPECT_EQ(nvfp4.scales.dtype(), DType::kF8E4M3);
  EXPECT_EQ(nvfp4.global_scale.shape(), (Shape{1}));
  const auto across = QuantizedTensor::empty(formats::mxfp8, {5, 33}, 0);
  EXPECT_EQ(across.codes.shape(), (Shape{33, 5}));
  EXPECT_EQ(across.scales.shape(), (Shape{33, 1}));
  EXPECT_EQ(across.scales.dtype(), DType::kF8E8M0);
  EXPECT_FALSE(across.global_scale.defined());
  EXPECT_EQ(QuantizedTensor::empty(formats::fp8_tensor, {5, 33}).scales.shape(), (Shape{1}));
  EXPECT_EQ(QuantizedTensor::empty(formats::fp8, {5, 33}).scales.shape(), (Shape{5, 1}));
}

}  // namespace
}  // namespace halftone
