// How each generation of GPUs multiplies, decided without owning one.
#include "halftone/kernels/cuda/product_plan.h"

#include <gtest/gtest.h>

namespace halftone::cuda {
namespace {

const char kSomewhere[1] = {};

MatMulArgs product(const Format* a, const Format* b, DType y = DType::kBF16) {
  MatMulArgs args;
  args.how = {false, true};
  args.a = {kSomewhere, DType::kBF16, {256, 512}, a};
  args.b = {kSomewhere, DType::kBF16, {384, 512}, b};
  args.a.rows_per_scale = 128;
  args.y = {nullptr, y, {256, 384}};
  args.rows_per_item = 128;
  return args;
}

TEST(ProductPlan, Fp8RowsAreNativeFromAdaOn) {
  const MatMulArgs args = product(&formats::fp8, &formats::fp8);
  for (const int capability : {89, 90, 100, 103, 120}) {
    const ProductPlan plan = plan_product(args, capability);
    EXPECT_TRUE(plan.native) << capability;
    EXPECT_EQ(plan.kind, GemmKind::kFp8);
    EXPECT_EQ(plan.scales, capability == 90 ? GemmScales::kRows : GemmScales::kNone);
    EXPECT_EQ(plan.finish, capability != 90) << "scales of rows are Hopper's alone";
  }
  for (const int capability : {75, 80, 86}) {
    const ProductPlan plan = plan_product(args, capability);
    EXPECT_FALSE(plan.native);
    EXPECT_EQ(plan.kind, capability < 80 ? GemmKind::kF32 : GemmKind::kBf16);
    EXPECT_TRUE(plan.finish);
  }
}

TEST(ProductPlan, Fp8PerTensorHasAScalePerItem) {
  const ProductPlan plan = plan_product(product(&formats::fp8_tensor, &formats::fp8_tensor), 90);
  EXPECT_TRUE(plan.native);
  EXPECT_TRUE(plan.per_item);
  EXPECT_EQ(plan.scales, GemmScales::kScalar);
  EXPECT_FALSE(plan.finish);
}

TEST(ProductPlan, BlockScalesAreNativeOnBlackwellAndExactlyEmulatedBefore) {
  for (const Format* format : {&formats::mxfp8, &formats::nvfp4}) {
    const MatMulArgs args = product(format, format);
    for (const int capability : {100, 103, 120}) {
      const ProductPlan plan = plan_product(args, capability);
      EXPECT_TRUE(plan.native);
      EXPECT_EQ(plan.scales, format->global_scale ? GemmScales::kBlock16 : GemmScales::kBlock32);
      EXPECT_EQ(plan.kind, format->global_scale ? GemmKind::kFp4 : GemmKind::kFp8);
      EXPECT_EQ(plan.alpha, format->global_scale);
      EXPECT_EQ(plan.a, Preparation::kAsStored);
    }
    for (const int capability : {80, 86, 89, 90}) {
      const ProductPlan plan = plan_product(args, capability);
      EXPECT_FALSE(plan.native);
      EXPECT_EQ(plan.a, Preparation::kDecode);
      EXPECT_EQ(plan.b, Preparation::kDecode);
      EXPECT_EQ(plan.kind, GemmKind::kBf16);
      EXPECT_EQ(plan.alpha, format->global_scale);
      EXPECT_TRUE(plan.as_alone);  // few rows
      EXPECT_EQ(plan.per_item, format->global_scale);
      EXPECT_FALSE(plan.finish);
    }
  }
}

// Tensor cores at every bit of F32, where the other operand is exact in BF16.
TEST(ProductPlan, FloatsAreSplitAgainstNarrowWeights) {
  for (const Format* format : {static_cast<const Format*>(nullptr), &formats::fp8, &formats::mxfp8,
                               &formats::nvfp4, &formats::fp8_tensor}) {
    MatMulArgs args = product(nullptr, format, DType::kF32);
    args.a.dtype = DType::kF32;
    EXPECT_EQ(plan_product(args, 75).kind, GemmKind::kF32);
    for (const int capability : {80, 90, 100}) {
      const ProductPlan plan = plan_product(args, capability);
      EXPECT_EQ(plan.a, Preparation::kSplit);
      EXPECT_EQ(plan.b, format == nullptr ? Preparation::kAsStored : Preparation::kDecode);
      EXPECT_EQ(plan.kind, GemmKind::kBf16);
      EXPECT_EQ(plan.finish, format != nullptr && format->span == ScaleSpan::kRow);
    }
    args.gelu = true;  // of the sum, not of its parts
    EXPECT_TRUE(plan_product(args, 90).finish);
    args.rows_per_item = 32;
    EXPECT_EQ(plan_product(args, 90).kind, GemmKind::kF32) << "few rows";
  }
  MatMulArgs args = product(nullptr, nullptr, DType::kF32);
  args.a.dtype = args.b.dtype = DType::kF32;
  EXPECT_EQ(plan_product(args, 90).kind, GemmKind::kF32) << "weights with more bits";
  args = product(nullptr, &formats::fp8, DType::kF32);
  args.a.dtype = DType::kF32;
  args.b.shape = {512, 384};
  args.how.transpose_b = false;
  EXPECT_EQ(plan_product(args, 90).b, Preparation::kValues) << "scales along the sum";
}

TEST(ProductPlan, WhatDoesNotFitTensorCoresIsDecoded) {
  MatMulArgs args = product(&formats::fp8, &formats::fp8);
  args.a.shape = {256, 520};
  args.b.shape = {384, 520};  // K no multiple of 16
  EXPECT_EQ(plan_product(args, 90).a, Preparation::kDecode);
  EXPECT_TRUE(plan_product(args, 90).finish);
  const MatMulArgs e5m2 = product(&formats::fp8_e5m2, &formats::fp8_e5m2);
  EXPECT_FALSE(plan_product(e5m2, 90).native);
}

TEST(ProductPlan, ScalesAlongTheContractionAreAppliedFirst) {
  MatMulArgs args = product(nullptr, &formats::fp8, DType::kF32);
  args.how = {false, false};
  args.b.shape = {512, 384};
  const ProductPlan plan = plan_product(args, 90);
  EXPECT_EQ(plan.b, Preparation::kValues);
  EXPECT_EQ(plan.kind, GemmKind::kF32);
}

TEST(ProductPlan, OneRowPerItemIsDotProducts) {
  MatMulArgs args = product(nullptr, nullptr, DType::kF32);
  args.a.dtype = DType::kF32;
  EXPECT_FALSE(plan_product(args, 90).by_dot_products);
  args.rows_per_item = 1;
  EXPECT_TRUE(plan_product(args, 90).by_dot_products);
}

TEST(ProductPlan, WideWeightsAreRoundedForBf16Activations) {
  MatMulArgs args = product(nullptr, nullptr);
  args.b.dtype = DType::kF32;
  EXPECT_EQ(plan_product(args, 90).b, Preparation::kRound);
  EXPECT_EQ(plan_product(args, 90).kind, GemmKind::kBf16);
  EXPECT_EQ(plan_product(args, 75).kind, GemmKind::kF32);
}

// Then a row's bits do not depend on its batch.
TEST(ProductPlan, FewRowsAndF32HaveTheAlgorithmOfOneItem) {
  MatMulArgs args = product(nullptr, nullptr);
  EXPECT_TRUE(plan_product(args, 90).as_alone);
  args.a.shape = {8192, 512};
  args.y.shape = {8192, 384};
  args.rows_per_item = 4096;
  EXPECT_FALSE(plan_product(args, 90).as_alone);
  args.a.dtype = DType::kF32;
  EXPECT_FALSE(plan_product(args, 90).as_alone);  // as products of BF16
  args.b.dtype = DType::kF32;
  EXPECT_TRUE(plan_product(args, 90).as_alone);
}

TEST(ProductPlan, ABiasOfAnotherTypeIsAddedAfterwards) {
  MatMulArgs args = product(nullptr, nullptr);
  args.bias = {kSomewhere, DType::kBF16, {384}};
  EXPECT_FALSE(plan_product(args, 90).finish);
  args.bias.dtype = DType::kF32;
  EXPECT_TRUE(plan_product(args, 90).finish);
}

}  // namespace
}  // namespace halftone::cuda
