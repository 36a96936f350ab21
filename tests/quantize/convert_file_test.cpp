// Whole files from dialect to dialect: nothing gets lost, and what cannot be held is refused.
#include "halftone/quantize/convert_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/io/dialect_writer.h"
#include "halftone/kernels/quantize.h"
#include "tests/support/errors.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::read_file;
using testing::HasSubstr;

constexpr Dialect kDialects[] = {Dialect::kHalftone, Dialect::kComfyUI, Dialect::kModelOpt,
                                 Dialect::kCompressedTensors, Dialect::kTorchao};

class ConvertFile : public testing::Test {
 protected:
  using Tensors = std::vector<std::pair<std::string, Tensor>>;

  // Weights of each of these formats, a bias, a norm and metadata of somebody else's.
  void write_input(const std::vector<Format>& formats) {
    std::vector<WeightInfo> infos;
    Tensors tensors = {{"norm.weight", test::f32_tensor({64}, test::gaussians(3, 64))},
                       {"head.weight", test::bf16_tensor({4, 8}, test::gaussians(4, 32))},
                       {"token", test::f32_tensor({1}, {1})}};
    for (const Format& format : formats) {
      const std::string name = fmt::format("blocks.{}.weight", infos.size());
      // 40 rows need padding for ComfyUI.
      const Tensor x = test::f32_tensor({40, 64}, test::gaussians(infos.size(), 40 * 64));
      const QuantizedTensor q = quantize(cpu_kernels(), x, format, {}, {});
      WeightInfo info = weight_info(name, q, {}, infos.size() % 2 == 0);
      if (format.scale != ScaleType::kE8M0) info.input_scale = 0.037f;
      for (auto& tensor : dialect_tensors(Dialect::kHalftone, info, q, "in")) {
        tensors.push_back(std::move(tensor));
      }
      tensors.emplace_back(fmt::format("blocks.{}.bias", infos.size()),
                           test::f32_tensor({40}, test::gaussians(9, 40)));
      infos.push_back(info);
    }
    Metadata metadata = dialect_metadata(Dialect::kHalftone, infos, {});
    metadata["format"] = "pt";
    write_safetensors(in_, tensors, metadata);
  }
  FileConvertReport convert(const fs::path& from, const fs::path& to, Dialect dialect) {
    return convert_file(from, to, {dialect, {}}, test::silent);
  }

  test::TempDir dir_;
  fs::path in_ = dir_ / "in.safetensors";
};

TEST_F(ConvertFile, ChainsOfThreeComeBackByteForByte) {
  write_input({formats::fp8_tensor, formats::mxfp8, formats::nvfp4, formats::nvfp4});
  const fs::path a1 = dir_ / "a1.safetensors", b = dir_ / "b.safetensors",
                 c = dir_ / "c.safetensors", a2 = dir_ / "a2.safetensors";
  int chains = 0;
  for (const Dialect first : kDialects) {
    convert(in_, a1, first);
    for (const Dialect second : kDialects) {
      convert(a1, b, second);
      for (const Dialect third : kDialects) {
        convert(b, c, third);
        const auto report = convert(c, a2, first);
        ASSERT_EQ(read_file(a1), read_file(a2))
            << to_string(first) << " " << to_string(second) << " " << to_string(third);
        EXPECT_EQ(report.converted.size(), 4u);
        EXPECT_EQ(report.copied, 7);
        ++chains;
      }
    }
    convert(a2, b, Dialect::kHalftone);
    const auto again = Checkpoint::open(b), original = Checkpoint::open(in_);
    EXPECT_EQ(again.metadata(), original.metadata()) << to_string(first);
    ASSERT_EQ(again.items().size(), original.items().size());
    for (const Checkpoint::Item& item : original.items()) {
      EXPECT_EQ(test::bytes_of(again.tensor(item.entry->name)),
                test::bytes_of(original.tensor(item.entry->name)))
          << item.entry->name;
    }
  }
  EXPECT_EQ(chains, 125);
}

TEST_F(ConvertFile, ScalesPerRowSurviveWhereTheyCanBeHeld) {
  write_input({formats::fp8, formats::fp8});
  const fs::path out = dir_ / "o.safetensors", back = dir_ / "back.safetensors";
  for (const Dialect dialect :
       {Dialect::kModelOpt, Dialect::kCompressedTensors, Dialect::kTorchao}) {
    convert(in_, out, dialect);
    EXPECT_EQ(read_stored_weights(Checkpoint::open(out)).dialect, dialect);
    convert(out, back, Dialect::kHalftone);
    EXPECT_EQ(Checkpoint::open(back).metadata(), Checkpoint::open(in_).metadata());
    EXPECT_EQ(test::bytes_of(Checkpoint::open(back).tensor("blocks.1.weight_scale")),
              test::bytes_of(Checkpoint::open(in_).tensor("blocks.1.weight_scale")));
  }
  const fs::path refused = dir_ / "refused.safetensors";
  EXPECT_EQ(error_of([&] { convert(in_, refused, Dialect::kComfyUI); }),
            refused.string() +
                ": tensor 'blocks.0.weight': fp8 cannot be written for comfyui: it has a scale per "
                "row, and ComfyUI one per tensor; quantize to fp8-tensor, or convert to modelopt, "
                "compressed-tensors or torchao");
  EXPECT_FALSE(fs::exists(refused));
}

TEST_F(ConvertFile, ConfigsAreWrittenBesideTheOutput) {
  write_input({formats::fp8, formats::nvfp4});
  const auto report = convert(in_, dir_ / "o.safetensors", Dialect::kCompressedTensors);
  EXPECT_EQ(report.config, dir_ / "o.quantization_config.json");
  const auto config = nlohmann::json::parse(read_file(report.config));
  EXPECT_EQ(config["format"], "mixed-precision");
  EXPECT_EQ(config["config_groups"].size(), 2u);
  EXPECT_EQ(config["ignore"], nlohmann::json({"head"}));
  const auto other = convert(in_, dir_ / "o.safetensors", Dialect::kModelOpt);
  const auto quant = nlohmann::json::parse(read_file(other.config))["quantization"];
  EXPECT_EQ(quant["quant_algo"], "MIXED_PRECISION");
  EXPECT_EQ(quant["quantized_layers"]["blocks.1"]["quant_algo"], "NVFP4");
  EXPECT_TRUE(convert(in_, dir_ / "p.safetensors", Dialect::kTorchao).config.empty());
}

TEST_F(ConvertFile, WhatCannotBeConvertedIsRefusedAndNothingIsWritten) {
  const fs::path out = dir_ / "o.safetensors";
  write_safetensors(in_, Tensors{{"a.weight", test::f32_tensor({1, 1}, {1})}});
  EXPECT_THAT(error_of([&] { convert(in_, out, Dialect::kTorchao); }),
              HasSubstr("holds no quantized weight"));
  EXPECT_THAT(error_of([&] { convert(in_, in_, Dialect::kTorchao); }),
              HasSubstr("the output is the input"));
  write_safetensors(in_, Tensors{{"a.weight", Tensor::zeros(DType::kF8E4M3, {4, 4})},
                                 {"a.weight_scale", test::f32_tensor({1}, {1})},
                                 {"a.awq_scale", test::f32_tensor({1}, {1})}});
  EXPECT_THAT(error_of([&] { convert(in_, out, Dialect::kTorchao); }), HasSubstr("'a.awq_scale'"));
  write_input({formats::nvfp4});
  int calls = 0;
  EXPECT_THAT(error_of([&] {
                convert_file(in_, out, {Dialect::kTorchao, {}}, [&](const Progress&) {
                  if (++calls == 2) throw Error(ErrorCode::kCancelled, "test", "interrupted");
                });
              }),
              HasSubstr("interrupted"));
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(ConvertFile, PlainFp8BecomesFp8UnderAScaleOfOne) {
  const Tensor codes = test::random_bits(DType::kF8E4M3, {16, 32}, 5);
  write_safetensors(in_, Tensors{{"a.weight", codes},
                                 {"norm.weight", test::random_bits(DType::kF8E4M3, {16}, 6)},
                                 {"token", test::random_bits(DType::kF8E4M3, {1, 16}, 7)}});
  const fs::path out = dir_ / "o.safetensors";
  EXPECT_EQ(convert(in_, out, Dialect::kHalftone).converted.size(), 2u);
  const auto halftone = Checkpoint::open(out);
  EXPECT_EQ(test::bytes_of(halftone.tensor("a.weight")), test::bytes_of(codes));
  EXPECT_EQ(halftone.tensor("a.weight_scale").as<float>()[0], 1.0f);
  // In a ComfyUI file what is no layer's weight may stay as it is.
  const auto comfy = convert(in_, out, Dialect::kComfyUI);
  EXPECT_EQ(comfy.converted.size(), 1u);
  EXPECT_EQ(comfy.copied, 2);
  EXPECT_EQ(read_stored_weights(Checkpoint::open(out)).weights.size(), 2u);
}

}  // namespace
}  // namespace halftone
