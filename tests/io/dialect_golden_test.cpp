// Files that other tools wrote (tools/golden/dialects.py) stand for what those tools say.
#include <gtest/gtest.h>

#include "halftone/io/stored_weights.h"
#include "halftone/kernels/quantize.h"
#include "halftone/tensor/float_values.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

class DialectGolden : public testing::TestWithParam<const char*> {
 protected:
  static Checkpoint open(const std::string& name) {
    return Checkpoint::open(std::filesystem::path(HALFTONE_TEST_DATA) / "dialects" /
                            (name + ".safetensors"));
  }
};
INSTANTIATE_TEST_SUITE_P(, DialectGolden,
                         testing::Values("comfyui", "comfyui_legacy", "compressed-tensors",
                                         "modelopt", "torchao"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(DialectGolden, WeightsStandForWhatTheToolSays) {
  const Checkpoint checkpoint = open(GetParam());
  const Checkpoint expected = open(std::string(GetParam()) + "_expected");
  const StoredWeights stored = read_stored_weights(checkpoint);
  EXPECT_EQ(to_string(stored.dialect),
            std::string(GetParam()).starts_with("comfyui") ? "comfyui" : GetParam());
  EXPECT_TRUE(stored.unexplained.empty());
  ASSERT_EQ(stored.weights.size(), expected.items().size());
  for (const Checkpoint::Item& item : expected.items()) {
    const std::string& name = item.entry->name;
    const StoredWeight* weight = stored.find(name);
    ASSERT_NE(weight, nullptr) << name;
    ASSERT_TRUE(could_be(*weight, item.entry->shape)) << name << weight->shape.str();
    const QuantizedTensor q = load_stored(checkpoint, *weight, item.entry->shape);
    const Tensor y = dequantize(cpu_scalar_kernels(), q, DType::kF32, {});
    const Tensor e = as_f32(expected.tensor(name));
    // Tools multiply the two scales of NVFP4 first, which rounds unless one is a power of two.
    const bool exact = !name.starts_with("general");
    double largest = 0;
    for (int64_t i = 0; i < y.numel(); ++i) {
      const float got = y.as<float>()[i], want = e.as<float>()[i];
      largest = std::max(largest, std::abs(static_cast<double>(want)));
      if (exact) {
        ASSERT_EQ(got, want) << name << " " << i;
      } else {
        ASSERT_NEAR(got, want, 3e-7 * std::abs(want)) << name << " " << i;
      }
    }
    EXPECT_GT(largest, 0.01) << name;
  }
}

TEST_F(DialectGolden, InputScalesAndMarkersAreKept) {
  const auto comfy = read_stored_weights(open("comfyui")).weights;
  EXPECT_EQ(comfy.at("fp8.weight").input_scale, 0.5f);
  EXPECT_TRUE(comfy.at("fp8.weight").full_precision);
  EXPECT_FALSE(comfy.at("nvfp4.weight").full_precision);
  EXPECT_EQ(comfy.at("nvfp4.weight").shape[0], 136) << "the bias tells";
  const auto legacy = read_stored_weights(open("comfyui_legacy")).weights;
  EXPECT_EQ(legacy.at("a.weight").input_scale, 0.5f);
  EXPECT_TRUE(legacy.at("b.weight").full_precision);
  const auto compressed = read_stored_weights(open("compressed-tensors")).weights;
  EXPECT_EQ(compressed.at("channel.weight").input_scale, 0.5f);
  EXPECT_EQ(compressed.at("channel.weight").format, formats::fp8);
  EXPECT_EQ(compressed.at("nvfp4.weight").input_scale, 0.25f) << "4 is stored";
  const auto modelopt = read_stored_weights(open("modelopt")).weights;
  EXPECT_EQ(modelopt.at("nvfp4.weight").input_scale, 0.25f);
  const auto torchao = read_stored_weights(open("torchao")).weights;
  EXPECT_EQ(torchao.at("nvfp4.weight").input_scale, 0.25f);
  EXPECT_TRUE(torchao.at("nvfp4_swizzled.weight").swizzled);
  EXPECT_TRUE(torchao.at("row.weight").full_precision) << "only its weight is quantized";
  EXPECT_FALSE(torchao.at("mx.weight").full_precision);
  EXPECT_EQ(torchao.at("mx.weight").format.rounding, ExponentRounding::kFloor);
}

}  // namespace
}  // namespace halftone
