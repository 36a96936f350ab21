// Generated kernels compile for every GPU, and move memory as they should. Needs no GPU.
#include "halftone/kernels/cuda/fused_source.h"

#include <gtest/gtest.h>

#include "halftone/kernels/cuda/jit.h"

namespace halftone::cuda {
namespace {

FusedRowsAttributes norm_and_quantize(int64_t length, const Format& format) {
  FusedRowsAttributes how;
  how.rows = how.rows_per_item = 64;
  how.inputs = {{RowSource::kPerRow, length, 0, length}, {RowSource::kShared, length, 0, length}};
  RowStep norm;
  norm.function = RowFunction::kRmsNorm;
  norm.operands = {0, 1, 0};
  norm.length = norm.width = length;
  norm.dtype = DType::kBF16;
  RowStep quantize = norm;
  quantize.function = RowFunction::kQuantize;
  quantize.operands = {2, 0, 0};
  quantize.output = 0;
  quantize.format = format;
  how.steps = {norm, quantize};
  return how;
}

constexpr DType kTypes[] = {DType::kBF16, DType::kF32};

TEST(FusedSource, CompilesForEveryGeneration) {
  for (const int capability : {75, 80, 89, 90, 100, 120}) {
    Format still = formats::nvfp4, tiles = formats::mxfp8, tensor = formats::fp8_tensor;
    still.static_scale = tensor.static_scale = true;
    tiles.swizzled = true;
    for (const Format& format : {formats::fp8, formats::mxfp8, still, tiles, tensor}) {
      const FusedSource source = write_fused_source(norm_and_quantize(3840, format), kTypes);
      EXPECT_GT(compile(source.text, capability).size(), 1000u) << capability;
    }
  }
}

TEST(FusedSource, ARowOfEightsIsReadInSixteenBytes) {
  const FusedSource source = write_fused_source(norm_and_quantize(3840, formats::fp8), kTypes);
  EXPECT_EQ(source.threads, 160);
  EXPECT_NE(source.text.find("load_once<bf16, 8>"), std::string::npos);
  const FusedSource odd = write_fused_source(norm_and_quantize(3841, formats::fp8), kTypes);
  EXPECT_NE(odd.text.find("load_once<bf16, 1>"), std::string::npos);
  EXPECT_GT(compile(odd.text, 90).size(), 1000u);
}

TEST(FusedSource, ElementwiseRowsAreSharedByBlocks) {
  FusedRowsAttributes how = norm_and_quantize(1 << 20, formats::mxfp8);
  how.steps[0].function = RowFunction::kMul;
  const FusedSource source = write_fused_source(how, kTypes);
  EXPECT_EQ(source.pieces * source.threads * 8, 1 << 20);
}

TEST(FusedSource, TextDependsOnAllThatCounts) {
  const auto text = [](int64_t length, const Format& format) {
    return write_fused_source(norm_and_quantize(length, format), kTypes).text;
  };
  EXPECT_NE(text(3840, formats::fp8), text(3840, formats::mxfp8));
  EXPECT_NE(text(3840, formats::fp8), text(3584, formats::fp8));
  FusedRowsAttributes more = norm_and_quantize(3840, formats::fp8);
  more.rows *= 7;  // not this: a batch of another size has the same kernel
  EXPECT_EQ(write_fused_source(more, kTypes).text, text(3840, formats::fp8));
}

TEST(Jit, WhatDoesNotCompileIsAnErrorWithTheLog) {
  try {
    compile("extern \"C\" __global__ void broken() { no_such_thing(); }", 90);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("no_such_thing"), std::string::npos);
  }
}

}  // namespace
}  // namespace halftone::cuda
