// FLUX.2's transformer in one file with the names of the original code: the same weights, bit for
// bit, as in diffusers' naming, and what can be told from tensors alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/dialect_writer.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/kernels/quantize.h"
#include "halftone/models/flux2/names.h"
#include "halftone/models/weights.h"
#include "tests/support/backend.h"
#include "tests/support/errors.h"
#include "tests/support/flux2_case.h"
#include "tests/support/temp_dir.h"

namespace halftone::flux2 {
namespace {

using nlohmann::json;
using test::bytes_of;
using test::error_of;
using test::floats;
using test::relative_error;
using testing::HasSubstr;

using Tensors = std::vector<std::pair<std::string, Tensor>>;

class Flux2Names : public testing::Test, protected test::Flux2Case {
 protected:
  Flux2Names() : test::Flux2Case("small"), single_(test::flux2_data("single_file")) {
    const json described = parse_json(single_.metadata().at("case"), "fixture");
    for (const auto& [name, shape] : described["tensors"].items()) {
      original_.emplace_back(
          name, test::procedural_weight(name, Shape(shape.get<std::vector<int64_t>>())));
    }
    rows_ = described["rows"];
    graph_ = build_transformer(config_, shape_, {});
  }

  // Which rows of which tensors make up a weight diffusers' own converter has told.
  Tensors converted() const {
    Tensors result;
    for (const auto& [name, ranges] : rows_.items()) {
      std::vector<uint8_t> bytes;
      int64_t rows = 0;
      Shape shape{0};
      for (const auto& range : ranges) {
        const auto source = std::find_if(original_.begin(), original_.end(), [&](const auto& item) {
          return item.first == range[0].get<std::string>();
        });
        const int64_t begin = range[1], end = range[2];
        shape = source->second.shape();
        const auto part = bytes_of(source->second.rows(begin, end));
        bytes.insert(bytes.end(), part.begin(), part.end());
        rows += end - begin;
      }
      const Shape own = shape.rank() == 1 ? Shape{rows} : Shape{rows, shape[1]};
      Tensor tensor = Tensor::empty(DType::kBF16, own);
      std::memcpy(tensor.mutable_bytes().data(), bytes.data(), bytes.size());
      result.emplace_back(name, tensor);
    }
    return result;
  }

  Weights load(const Tensors& tensors, const Metadata& metadata = {}) {
    const auto path = dir_ / (std::to_string(files_.size()) + ".safetensors");
    write_safetensors(path, tensors, metadata);
    files_.push_back(Checkpoint::open(path));
    EXPECT_TRUE(is_flux2_file(files_.back()));
    return load_weights(files_.back(), {&graph_, 1}, names_in(files_.back()));
  }
  static void expect_same(const Weights& a, const Weights& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, weight] : a) {
      EXPECT_EQ(bytes_of(std::get<Tensor>(weight)), bytes_of(std::get<Tensor>(b.at(name)))) << name;
    }
  }
  Tensors renamed(const std::function<std::string(const std::string&)>& change) const {
    Tensors result;
    for (const auto& [name, tensor] : original_) result.emplace_back(change(name), tensor);
    return result;
  }

  test::TempDir dir_;
  std::vector<Checkpoint> files_;  // weights are views of them
  SafetensorsFile single_;
  Tensors original_;
  json rows_;
  std::shared_ptr<Graph> graph_;
};

TEST_F(Flux2Names, ASingleFileIsTheSameModel) {
  const Weights from_single = load(original_), from_diffusers = load(converted());
  expect_same(from_single, from_diffusers);
  const Tensor sample = test::tested_program(graph_, from_single).run(inputs_).at("sample");
  EXPECT_LE(relative_error(floats(sample), floats(single_.tensor("sample"))), 2e-5);
}

TEST_F(Flux2Names, PrefixesAndOtherToolsNamesAreTheSameModel) {
  const Weights plain = load(original_);
  Tensors whole = renamed([](const auto& name) { return "model.diffusion_model." + name; });
  whole.emplace_back("vae.decoder.conv_in.weight", Tensor::zeros(DType::kBF16, {1}));
  whole.emplace_back("text_encoders.qwen3.model.norm.weight", Tensor::zeros(DType::kBF16, {1}));
  expect_same(load(whole), plain);
  expect_same(load(renamed([](const auto& name) {
                return name.ends_with(".scale")
                           ? name.substr(0, name.size() - std::string_view("scale").size()) +
                                 "weight"
                           : name;
              })),
              plain);
  Tensors prefixed;
  for (const auto& [name, tensor] : converted())
    prefixed.emplace_back("transformer." + name, tensor);
  expect_same(load(prefixed), plain);
}

// Rows that are quantized keep their codes and scales wherever they stand.
TEST_F(Flux2Names, RowsOfQuantizedTensorsAreTheSame) {
  for (const Format* format : {&formats::fp8, &formats::mxfp8, &formats::fp8_tensor}) {
    Tensors stored;
    std::vector<WeightInfo> infos;
    std::map<std::string, QuantizedTensor> whole;
    for (const auto& [name, tensor] : original_) {
      if (name.find(".qkv.") == std::string::npos && name.find("adaLN") == std::string::npos) {
        stored.emplace_back(name, tensor);
        continue;
      }
      const QuantizedTensor q = quantize(cpu_kernels(), tensor, *format, {}, {2});
      infos.push_back(weight_info(name, q));
      for (auto& part : dialect_tensors(Dialect::kHalftone, infos.back(), q, "f")) {
        stored.push_back(part);
      }
      whole.emplace(name, q);
    }
    const Weights weights =
        load(stored, dialect_metadata(Dialect::kHalftone, infos, std::vector<std::string>{}));
    int compared = 0;
    for (const auto& [name, ranges] : rows_.items()) {
      const auto* q = std::get_if<QuantizedTensor>(&weights.at(name));
      if (q == nullptr) continue;
      const QuantizedTensor& source = whole.at(ranges[0][0].get<std::string>());
      std::vector<uint8_t> codes, scales;
      for (const auto& range : ranges) {
        const int64_t begin = range[1], end = range[2];
        const auto add = [&](const Tensor& from, std::vector<uint8_t>& to) {
          const auto part = bytes_of(from.rows(begin, end));
          to.insert(to.end(), part.begin(), part.end());
        };
        add(source.codes, codes);
        if (format->span != ScaleSpan::kTensor) add(source.scales, scales);
      }
      EXPECT_EQ(bytes_of(q->codes), codes) << name;
      EXPECT_EQ(bytes_of(q->scales), scales.empty() ? bytes_of(source.scales) : scales) << name;
      ++compared;
    }
    EXPECT_EQ(compared, 2 * 6 + 1) << format->name;
  }
}

TEST_F(Flux2Names, WhatIsMissingOrTooMuchIsNamedAsTheFileHasIt) {
  Tensors tensors = original_;
  std::erase_if(tensors, [](const auto& item) {
    return item.first == "double_blocks.1.txt_attn.qkv.weight";
  });
  tensors.emplace_back("double_blocks.7.img_mlp.0.weight", Tensor::zeros(DType::kBF16, {2, 2}));
  const std::string error = error_of([&] { load(tensors); });
  EXPECT_THAT(error, HasSubstr("missing: 'double_blocks.1.txt_attn.qkv.weight'"));
  EXPECT_THAT(error, HasSubstr("unexpected: 'double_blocks.7.img_mlp.0.weight'"));
}

// Zeros in the shapes of a config, with the names of single files.
Tensors zeros_of(const TransformerConfig& c) {
  Tensors tensors;
  const auto add = [&](const std::string& name, const Shape& shape) {
    tensors.emplace_back(name, Tensor::zeros(DType::kBF16, shape));
  };
  add("img_in.weight", {c.dim(), c.in_channels});
  add("txt_in.weight", {c.dim(), c.joint_dim});
  add("time_in.in_layer.weight", {c.dim(), c.time_channels});
  add("single_stream_modulation.lin.weight", {3 * c.dim(), c.dim()});
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string block = fmt::format("double_blocks.{}.", i);
    add(block + "img_attn.norm.query_norm.scale", {c.head_dim});
    add(block + "img_mlp.0.weight", {2 * c.hidden(), c.dim()});
  }
  for (int64_t i = 0; i < c.single_layers; ++i) {
    add(fmt::format("single_blocks.{}.norm.query_norm.scale", i), {c.head_dim});
  }
  return tensors;
}

class Flux2Inference : public testing::Test {
 protected:
  TransformerConfig infer(const Tensors& tensors) const {
    write_safetensors(dir_ / "t.safetensors", tensors);
    const Checkpoint file = Checkpoint::open(dir_ / "t.safetensors");
    return infer_transformer_config(file, names_in(file));
  }
  std::string error(const Tensors& tensors) const {
    return error_of([&] { infer(tensors); });
  }
  test::TempDir dir_;
};

TEST_F(Flux2Inference, ShapesTellTheConfig) {
  TransformerConfig c;
  c.heads = 2;
  c.layers = 3;
  c.single_layers = 4;
  c.joint_dim = 96;
  c.in_channels = 64;
  c.time_channels = 32;
  c.mlp_ratio = 2;
  const TransformerConfig told = infer(zeros_of(c));
  EXPECT_EQ(told.heads, 2);
  EXPECT_EQ(told.head_dim, 128);
  EXPECT_EQ(told.layers, 3);
  EXPECT_EQ(told.single_layers, 4);
  EXPECT_EQ(told.joint_dim, 96);
  EXPECT_EQ(told.in_channels, 64);
  EXPECT_EQ(told.time_channels, 32);
  EXPECT_EQ(told.hidden(), 512);
}

TEST_F(Flux2Inference, WhatCannotBeToldOrIsNotSupportedIsNamed) {
  TransformerConfig c;
  c.heads = 1;
  c.layers = c.single_layers = 1;
  c.joint_dim = 8;
  EXPECT_EQ(error(zeros_of(c)), "(no error)");
  TransformerConfig narrow = c;
  narrow.head_dim = 64;
  EXPECT_THAT(error(zeros_of(narrow)), HasSubstr("heads of 64 need a transformer/config.json"));
  Tensors guided = zeros_of(c);
  guided.emplace_back("guidance_in.in_layer.weight", Tensor::zeros(DType::kBF16, {128, 256}));
  EXPECT_THAT(error(guided), HasSubstr("'guidance_embeds' is true, and only false is supported"));
  Tensors without = zeros_of(c);
  std::erase_if(without, [](const auto& item) { return item.first == "txt_in.weight"; });
  EXPECT_THAT(error(without),
              HasSubstr("is no FLUX.2 transformer: there is no tensor 'txt_in.weight' of rank 2"));
}

TEST_F(Flux2Inference, OtherFamiliesAreNotTaken) {
  const auto is_one = [&](const std::string& name) {
    write_safetensors(dir_ / "t.safetensors", {{name, Tensor::zeros(DType::kBF16, {4, 4})}});
    return is_flux2_file(Checkpoint::open(dir_ / "t.safetensors"));
  };
  EXPECT_TRUE(is_one("single_stream_modulation.lin.weight"));
  EXPECT_TRUE(is_one("model.diffusion_model.single_stream_modulation.lin.weight"));
  EXPECT_TRUE(is_one("single_stream_modulation.linear.weight"));
  EXPECT_FALSE(is_one("double_blocks.0.img_attn.qkv.weight"));
  EXPECT_FALSE(is_one("layers.0.attention.qkv.weight"));
}

// The two models that are published, by their numbers of parameters.
TEST(Flux2Sizes, PublishedModelsHaveAsManyParameters) {
  const auto parameters = [](const TransformerConfig& config) {
    int64_t count = 0;
    const auto graph = build_transformer(config, {1, 4, 4, 8}, {});
    for (const auto& [name, value] : graph->weights()) count += value.shape().numel();
    return count;
  };
  TransformerConfig klein_9b;
  klein_9b.layers = 8;
  klein_9b.single_layers = 24;
  klein_9b.heads = 32;
  klein_9b.joint_dim = 12288;
  EXPECT_EQ(parameters({}), 3'875'544'576);
  EXPECT_EQ(parameters(klein_9b), 9'078'581'248);
}

}  // namespace
}  // namespace halftone::flux2
