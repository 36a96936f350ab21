// Weights of every format, written for every tool and read back bit by bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/dialect_writer.h"
#include "halftone/io/stored_weights.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

using test::bytes_of;
using test::error_of;
using testing::HasSubstr;

constexpr Dialect kDialects[] = {Dialect::kHalftone, Dialect::kComfyUI, Dialect::kModelOpt,
                                 Dialect::kCompressedTensors, Dialect::kTorchao};

// Any codes and scales at all; the global scale is a number, as it may be inverted.
QuantizedTensor random_weight(const Format& format, const Shape& shape, uint64_t seed) {
  QuantizedTensor q = QuantizedTensor::empty(format, shape);
  q.codes = test::random_bits(q.codes.dtype(), q.codes.shape(), seed);
  q.scales = test::random_bits(q.scales.dtype(), q.scales.shape(), seed + 1);
  if (format.global_scale) {
    q.global_scale =
        test::f32_tensor({1}, {static_cast<float>(std::exp2(20 * test::uniform(seed, 7) - 16))});
  }
  return q;
}

struct Written {
  WeightInfo info;
  QuantizedTensor q;
};

class Roundtrip : public testing::Test {
 protected:
  void write(Dialect dialect, const std::vector<Written>& weights) {
    std::vector<std::pair<std::string, Tensor>> tensors;
    std::vector<WeightInfo> infos;
    for (const Written& weight : weights) {
      for (auto& tensor : dialect_tensors(dialect, weight.info, weight.q, "out")) {
        tensors.push_back(std::move(tensor));
      }
      infos.push_back(weight.info);
    }
    write_safetensors(file_, tensors, dialect_metadata(dialect, infos, {}));
  }
  void write(Dialect dialect, const Written& weight) {
    write(dialect, std::vector<Written>{weight});
  }

  void expect_same(const Written& weight, const StoredWeightOptions& options = {}) {
    const Checkpoint checkpoint = Checkpoint::open(file_);
    const StoredWeights stored = read_stored_weights(checkpoint, options);
    const StoredWeight* found = stored.find(weight.info.name);
    ASSERT_NE(found, nullptr);
    EXPECT_TRUE(stored.unexplained.empty()) << stored.unexplained[0];
    EXPECT_EQ(stored.consumed.size(), checkpoint.items().size());
    EXPECT_EQ(found->format, weight.info.format);
    EXPECT_EQ(found->shape, weight.info.shape);
    EXPECT_EQ(found->full_precision, weight.info.full_precision);
    EXPECT_EQ(found->input_scale, weight.info.input_scale);
    const QuantizedTensor q = load_stored(checkpoint, *found);
    EXPECT_EQ(bytes_of(q.codes), bytes_of(weight.q.codes));
    EXPECT_EQ(bytes_of(q.scales), bytes_of(weight.q.scales));
    EXPECT_EQ(bytes_of(q.global_scale), bytes_of(weight.q.global_scale));
    EXPECT_EQ(q.codes.shape(), weight.q.codes.shape());
    EXPECT_EQ(q.scales.shape(), weight.q.scales.shape());
    EXPECT_EQ(q.codes.dtype(), weight.q.codes.dtype());
    EXPECT_EQ(q.scales.dtype(), weight.q.scales.dtype());
  }

  test::TempDir dir_;
  std::filesystem::path file_ = dir_ / "weights.safetensors";
};

TEST_F(Roundtrip, EveryDialectGivesEveryFormatItCanHoldBack) {
  int held = 0;
  std::string refused;
  for (const Dialect dialect : kDialects) {
    for (const Format& format : all_formats()) {
      if (!format.quantized()) continue;
      for (const Shape& shape : {Shape{48, 64}, Shape{256, 128}, Shape{136, 96}, Shape{1, 32}}) {
        SCOPED_TRACE(fmt::format("{} {} {}", to_string(dialect), format.name, shape));
        const QuantizedTensor q = random_weight(format, shape, 11);
        WeightInfo info = weight_info("blocks.0.mlp.weight", q, {}, shape[0] == 48);
        if (format.scale != ScaleType::kE8M0) info.input_scale = 0.0123f;
        if (!why_not_in(dialect, info).empty()) {
          if (shape[0] == 1) refused += fmt::format("{}:{} ", to_string(dialect), format.name);
          EXPECT_THAT(error_of([&] { plan_tensors(dialect, info, "out"); }),
                      HasSubstr("out: tensor 'blocks.0.mlp.weight': " + std::string(format.name) +
                                " cannot be written for " + std::string(to_string(dialect))));
          continue;
        }
        write(dialect, {info, q});
        expect_same({info, q});
        ++held;
      }
    }
  }
  EXPECT_EQ(refused,
            "comfyui:fp8 comfyui:fp8-e5m2 comfyui:mxfp8-e5m2 modelopt:fp8-e5m2 "
            "modelopt:fp8-e5m2-tensor modelopt:mxfp8-e5m2 compressed-tensors:fp8-e5m2 "
            "compressed-tensors:fp8-e5m2-tensor compressed-tensors:mxfp8-e5m2 ");
  EXPECT_EQ(held, (5 * 9 - 9) * 4);
}

TEST_F(Roundtrip, OptionsOfAFormatSurvive) {
  Format format = formats::nvfp4_4over6;
  format.min_block_scale = 0x1p-9f;
  Format mx = formats::mxfp8;
  mx.rounding = ExponentRounding::kFloor;
  for (const Dialect dialect : kDialects) {
    for (const Format& f : {format, mx}) {
      const QuantizedTensor q = random_weight(f, {32, 64}, 3);
      write(dialect, {weight_info("a.weight", q), q});
      expect_same({weight_info("a.weight", q), q});
    }
  }
}

TEST_F(Roundtrip, ReciprocalsGiveEveryScaleBack) {
  std::vector<Written> weights;
  for (int i = 0; i < 500; ++i) {
    const QuantizedTensor q = random_weight(formats::nvfp4, {1, 16}, 100 + i);
    const float input = static_cast<float>(0.001 + test::uniform(5, i));
    weights.push_back({weight_info(fmt::format("l.{}.weight", i), q, input), q});
  }
  write(Dialect::kCompressedTensors, weights);
  const Checkpoint checkpoint = Checkpoint::open(file_);
  const StoredWeights stored = read_stored_weights(checkpoint);
  int noted = 0;
  for (const Written& weight : weights) {
    const StoredWeight& found = stored.weights.at(weight.info.name);
    EXPECT_EQ(stored_global_scale(checkpoint, found), weight.info.global_scale);
    EXPECT_EQ(found.input_scale, weight.info.input_scale);
    const float inverse = checkpoint.tensor(found.global_scale).as<float>()[0];
    EXPECT_NEAR(inverse * weight.info.global_scale, 1, 1e-6);
    noted += found.exact_global_scale ? 1 : 0;
  }
  // Most have a neighbour that inverts; the rest would be off by a bit without the note.
  EXPECT_GT(noted, 20);
  EXPECT_LT(noted, 250);
}

TEST_F(Roundtrip, PaddingIsCroppedToWhatTheModelAsksFor) {
  const QuantizedTensor q = random_weight(formats::nvfp4, {40, 72}, 9);
  const WeightInfo info = weight_info("a.weight", q);
  const auto tensors = dialect_tensors(Dialect::kComfyUI, info, q, "out");
  write_safetensors(file_, tensors);  // without the note on the shape
  const Checkpoint checkpoint = Checkpoint::open(file_);
  const StoredWeights stored = read_stored_weights(checkpoint);
  const StoredWeight& weight = stored.weights.at("a.weight");
  EXPECT_EQ(weight.shape, (Shape{48, 80}));
  EXPECT_TRUE(could_be(weight, {40, 72}));
  EXPECT_TRUE(could_be(weight, {48, 80}));
  EXPECT_FALSE(could_be(weight, {32, 72}));
  EXPECT_FALSE(could_be(weight, {40, 64}));
  EXPECT_FALSE(could_be(weight, {49, 80}));
  const QuantizedTensor cropped = load_stored(checkpoint, weight, {40, 72});
  EXPECT_EQ(bytes_of(cropped.codes), bytes_of(q.codes));
  EXPECT_EQ(bytes_of(cropped.scales), bytes_of(q.scales));
}

TEST_F(Roundtrip, ABiasTellsTheRowsOfAPaddedWeight) {
  const QuantizedTensor q = random_weight(formats::mxfp8, {40, 64}, 9);
  auto tensors = dialect_tensors(Dialect::kComfyUI, weight_info("a.weight", q), q, "out");
  tensors.emplace_back("a.bias", Tensor::zeros(DType::kF32, {40}));
  write_safetensors(file_, tensors);
  EXPECT_EQ(read_stored_weights(Checkpoint::open(file_)).weights.at("a.weight").shape,
            (Shape{40, 64}));
}

// The layout that shapes alone cannot tell: 128 rows and four scale columns.
TEST_F(Roundtrip, OverridesReadWhatMarkersDoNotSay) {
  const QuantizedTensor q = random_weight(formats::nvfp4, {128, 64}, 21);
  const WeightInfo info = weight_info("a.weight", q);
  auto tensors = dialect_tensors(Dialect::kComfyUI, info, q, "out");
  std::erase_if(tensors, [](const auto& t) { return t.first == "a.comfy_quant"; });
  write_safetensors(file_, tensors);
  const Checkpoint checkpoint = Checkpoint::open(file_);
  const auto read = [&](const StoredWeightOptions& options) {
    const StoredWeights stored = read_stored_weights(checkpoint, options);
    EXPECT_EQ(stored.dialect, Dialect::kModelOpt);
    return load_stored(checkpoint, stored.weights.at("a.weight"));
  };
  const QuantizedTensor guessed = read({});
  EXPECT_NE(bytes_of(guessed.codes), bytes_of(q.codes));
  EXPECT_NE(bytes_of(guessed.scales), bytes_of(q.scales));
  expect_same({info, q}, {NibbleOrder::kHigh, ScaleLayout::kSwizzled});
  const QuantizedTensor nibbles = read({NibbleOrder::kHigh, ScaleLayout::kAuto});
  EXPECT_EQ(bytes_of(nibbles.codes), bytes_of(q.codes));
  EXPECT_NE(bytes_of(nibbles.scales), bytes_of(q.scales));

  write(Dialect::kHalftone, {info, q});
  EXPECT_THAT(
      error_of([&] { read_stored_weights(Checkpoint::open(file_), {NibbleOrder::kHigh, {}}); }),
      HasSubstr("cannot be overruled"));
}

TEST_F(Roundtrip, NothingIsCopiedWhereTheLayoutIsOurs) {
  const QuantizedTensor q = random_weight(formats::nvfp4, {32, 64}, 2);
  for (const Dialect dialect : {Dialect::kHalftone, Dialect::kModelOpt, Dialect::kTorchao}) {
    write(dialect, {weight_info("a.weight", q), q});
    const Checkpoint checkpoint = Checkpoint::open(file_);
    const auto loaded =
        load_stored(checkpoint, read_stored_weights(checkpoint).weights.at("a.weight"));
    EXPECT_TRUE(loaded.codes.mapped() && loaded.scales.mapped() && loaded.global_scale.mapped());
  }
}

TEST_F(Roundtrip, ConfigsBesideTheFileNameTheLayers) {
  const QuantizedTensor q = random_weight(formats::nvfp4, {32, 64}, 2);
  const WeightInfo infos[] = {weight_info("a.weight", q, 0.5f)};
  const std::string kept[] = {"head"};
  const auto compressed = dialect_config(Dialect::kCompressedTensors, infos, kept);
  ASSERT_TRUE(compressed.has_value());
  EXPECT_THAT(compressed->json, HasSubstr("nvfp4-pack-quantized"));
  EXPECT_THAT(compressed->json, HasSubstr("\"head\""));
  const auto modelopt = dialect_config(Dialect::kModelOpt, infos, kept);
  ASSERT_TRUE(modelopt.has_value());
  EXPECT_THAT(modelopt->json, HasSubstr("\"quant_algo\": \"NVFP4\""));
  EXPECT_FALSE(dialect_config(Dialect::kComfyUI, infos, kept).has_value());
}

}  // namespace
}  // namespace halftone
