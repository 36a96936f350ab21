#include "halftone/io/dialect.h"

#include <gtest/gtest.h>

#include "halftone/io/quantization_metadata.h"
#include "tests/support/errors.h"

namespace halftone {
namespace {

DialectReport detect(std::vector<TensorEntry> tensors, const Metadata& metadata = {}) {
  std::vector<const TensorEntry*> pointers;
  for (const auto& tensor : tensors) pointers.push_back(&tensor);
  return detect_dialect(pointers, metadata, "f");
}
TensorEntry tensor(const std::string& name, DType dtype, const Shape& shape = {4, 4}) {
  return {name, dtype, shape, 0, 0};
}

TEST(Dialect, PlainCheckpointsHaveNone) {
  EXPECT_EQ(detect({tensor("a.weight", DType::kBF16), tensor("ids", DType::kU8)}).dialect,
            Dialect::kNone);
  EXPECT_EQ(detect({}).dialect, Dialect::kNone);
}

TEST(Dialect, Halftone) {
  const auto report =
      detect({tensor("a.weight", DType::kF8E4M3), tensor("a.weight_scale", DType::kF32)},
             {{kQuantizationKey, to_json({{"a.weight", {formats::fp8, {4, 4}}}})}});
  EXPECT_EQ(report.dialect, Dialect::kHalftone);
  EXPECT_EQ(report.layers.at("fp8"), 1);
}

TEST(Dialect, ComfyUiByEachOfItsMarkers) {
  const auto by_tensor =
      detect({tensor("a.weight", DType::kU8), tensor("a.weight_scale", DType::kF8E4M3),
              tensor("a.weight_scale_2", DType::kF32), tensor("a.comfy_quant", DType::kU8)});
  EXPECT_EQ(by_tensor.dialect, Dialect::kComfyUI);
  EXPECT_EQ(by_tensor.layers.at("nvfp4"), 1);
  const auto by_metadata =
      detect({}, {{"_quantization_metadata",
                   R"({"format_version":"1.0","layers":{"a":{"format":"mxfp8"}}})"}});
  EXPECT_EQ(by_metadata.dialect, Dialect::kComfyUI);
  EXPECT_EQ(by_metadata.layers.at("mxfp8"), 1);
  const auto legacy =
      detect({tensor("m.scaled_fp8", DType::kF8E4M3, {2}), tensor("m.a.weight", DType::kF8E5M2),
              tensor("m.a.scale_weight", DType::kF32, {1})});
  EXPECT_EQ(legacy.dialect, Dialect::kComfyUI);
  EXPECT_EQ(legacy.evidence, "tensor m.scaled_fp8");
  EXPECT_EQ(legacy.layers.at("fp8-e5m2"), 1);
}

TEST(Dialect, OtherTools) {
  const auto compressed =
      detect({tensor("a.weight_packed", DType::kU8), tensor("a.weight_scale", DType::kF8E4M3),
              tensor("a.weight_global_scale", DType::kF32, {1})});
  EXPECT_EQ(compressed.dialect, Dialect::kCompressedTensors);
  EXPECT_EQ(compressed.layers.at("nvfp4"), 1);
  const auto torchao = detect(
      {tensor("a._weight_qdata", DType::kF8E4M3), tensor("a._weight_scale", DType::kF8E8M0)});
  EXPECT_EQ(torchao.dialect, Dialect::kTorchao);
  EXPECT_EQ(torchao.layers.at("mxfp8"), 1);
  const auto modelopt =
      detect({tensor("a.weight", DType::kU8), tensor("a.weight_scale", DType::kF8E4M3),
              tensor("a.weight_scale_2", DType::kF32, {})});
  EXPECT_EQ(modelopt.dialect, Dialect::kModelOpt);
  EXPECT_EQ(modelopt.layers.at("nvfp4"), 1);
  const auto mx =
      detect({tensor("a.weight", DType::kF8E4M3), tensor("a.weight_scale", DType::kU8)});
  EXPECT_EQ(mx.layers.at("mxfp8"), 1);
  EXPECT_EQ(detect({tensor("a.weight", DType::kF8E5M2)}).dialect, Dialect::kPlainFp8);
  EXPECT_EQ(detect({tensor("a.weight", DType::kF4)}).dialect, Dialect::kUnknown);
}

TEST(Dialect, WhatLooksTheSameIsCalledByBothNames) {
  const auto fp8 =
      detect({tensor("a.weight", DType::kF8E4M3), tensor("a.weight_scale", DType::kF32, {1})});
  EXPECT_EQ(fp8.dialect, Dialect::kScaledFp8);
  EXPECT_EQ(fp8.layers.at("fp8"), 1);
}

TEST(Dialect, IntegersAreNoFormatOfOurs) {
  EXPECT_EQ(
      detect({tensor("a.weight", DType::kI8), tensor("a.weight_scale", DType::kF32, {1})}).dialect,
      Dialect::kNone);
}

TEST(Dialect, MetadataAboutATensorThatIsNotThereIsAnError) {
  const Metadata metadata = {{kQuantizationKey, to_json({{"b.weight", {formats::fp8, {4, 4}}}})}};
  EXPECT_EQ(test::error_of([&] { detect({tensor("a.weight", DType::kF8E4M3)}, metadata); }),
            "f: metadata halftone.quantization: tensor 'b.weight' is not in the file");
}

TEST(Dialect, NamesAreDistinct) {
  EXPECT_EQ(to_string(Dialect::kModelOpt), "modelopt");
  EXPECT_EQ(to_string(Dialect::kNone), "none");
}

}  // namespace
}  // namespace halftone
