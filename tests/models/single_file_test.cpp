// Transformers in one file with the names of the original code: the same weights, bit for bit, as
// in diffusers' naming, and what can be told from tensors alone. A family is a row of kFiles; its
// fixture is made by tools/golden/single_file.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "halftone/io/dialect_writer.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/kernels/quantize.h"
#include "halftone/models/flux1/family.h"
#include "halftone/models/flux2/family.h"
#include "halftone/models/sd3/family.h"
#include "halftone/models/sdxl/family.h"
#include "halftone/models/weights.h"
#include "tests/support/backend.h"
#include "tests/support/denoiser_case.h"
#include "tests/support/errors.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::bytes_of;
using test::error_of;
using test::floats;
using test::Golden;
using test::relative_error;
using testing::HasSubstr;

using Tensors = std::vector<std::pair<std::string, Tensor>>;

const Golden kFiles[] = {
    {"flux1", flux1::family, "small"},   {"flux1", flux1::family, "schnell"},
    {"flux1", flux1::family, "aligned"}, {"flux2", flux2::family, "small"},
    {"flux2", flux2::family, "aligned"}, {"sd3", sd3::family, "small"},
    {"sd3", sd3::family, "first"},       {"sd3", sd3::family, "aligned"},
    {"sdxl", sdxl::family, "levels"},
};

class SingleFileCase : protected test::DenoiserCase {
 protected:
  explicit SingleFileCase(const Golden& golden)
      : DenoiserCase(golden), row_(golden.row()), single_(data(golden, "single_file")) {
    const json cases = parse_json(single_.metadata().at("cases"), "fixture");
    for (const auto& [name, shape] : cases[name_]["tensors"].items()) {
      original_.emplace_back(
          name, test::procedural_weight(name, Shape(shape.get<std::vector<int64_t>>())));
    }
    rows_ = cases[name_]["rows"];
    graph_ = denoiser_->build(shape(), {});
  }

  const Tensor& original(const std::string& name) const {
    return std::find_if(original_.begin(), original_.end(),
                        [&](const auto& item) { return item.first == name; })
        ->second;
  }
  static void append(const Tensor& from, const json& range, std::vector<uint8_t>& to) {
    const auto part = bytes_of(from.rows(range[1].get<int64_t>(), range[2].get<int64_t>()));
    to.insert(to.end(), part.begin(), part.end());
  }

  // Which rows of which tensors make up a weight diffusers' own converter has told.
  Tensors converted() const {
    Tensors result;
    for (const auto& [name, ranges] : rows_.items()) {
      std::vector<uint8_t> bytes;
      std::vector<int64_t> dims;
      int64_t rows = 0;
      for (const auto& range : ranges) {
        const Tensor& source = original(range[0].get<std::string>());
        dims.assign(source.shape().dims().begin(), source.shape().dims().end());
        append(source, range, bytes);
        rows += range[2].get<int64_t>() - range[1].get<int64_t>();
      }
      dims[0] = rows;
      Tensor tensor = Tensor::empty(DType::kBF16, Shape(dims));
      std::memcpy(tensor.mutable_bytes().data(), bytes.data(), bytes.size());
      result.emplace_back(name, tensor);
    }
    return result;
  }

  Weights load(const Tensors& tensors, const Metadata& metadata = {}) {
    const auto path = dir_ / (std::to_string(files_.size()) + ".safetensors");
    write_safetensors(path, tensors, metadata);
    files_.push_back(Checkpoint::open(path));
    EXPECT_TRUE(row_.is_denoiser(files_.back()));
    return load_weights(files_.back(), {&graph_, 1}, denoiser_->names(files_.back()));
  }
  static void expect_same(const Weights& a, const Weights& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, weight] : a) {
      EXPECT_EQ(bytes_of(std::get<Tensor>(weight)), bytes_of(std::get<Tensor>(b.at(name)))) << name;
    }
  }
  // What a file alone tells: its config, and with it weights of these shapes.
  std::shared_ptr<Graph> told_by(const Tensors& tensors) const {
    const auto path = dir_ / "alone.safetensors";
    write_safetensors(path, tensors);
    return row_.denoiser({dir_ / "no_base", path})->build(shape(), {});
  }

  test::TempDir dir_;
  Family row_;
  std::vector<Checkpoint> files_;  // weights are views of them
  SafetensorsFile single_;
  Tensors original_;
  json rows_;
  std::shared_ptr<Graph> graph_;
};

class SingleFile : public testing::TestWithParam<Golden>, protected SingleFileCase {
 protected:
  SingleFile() : SingleFileCase(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(, SingleFile, testing::ValuesIn(kFiles),
                         testing::PrintToStringParamName());

TEST_P(SingleFile, IsTheSameModel) {
  const Weights from_single = load(original_), from_diffusers = load(converted());
  EXPECT_EQ(from_single.size(), rows_.size());
  expect_same(from_single, from_diffusers);
  const Tensor sample = test::tested_program(graph_, from_single).run(inputs()).at("sample");
  EXPECT_LE(relative_error(floats(sample), floats(single_.tensor(name_))), 2e-5);
}

TEST_P(SingleFile, PrefixesAndOtherToolsNamesAreTheSameModel) {
  const Weights plain = load(original_);
  Tensors whole, scales_called_weights, diffusers;
  for (const auto& [name, tensor] : original_) {
    whole.emplace_back("model.diffusion_model." + name, tensor);
    const std::string_view scale = "scale";
    scales_called_weights.emplace_back(
        name.ends_with(".scale") ? name.substr(0, name.size() - scale.size()) + "weight" : name,
        tensor);
  }
  for (const char* other : {"vae.decoder.conv_in.weight", "first_stage_model.encoder.x.weight",
                            "text_encoders.qwen3.model.norm.weight"}) {
    whole.emplace_back(other, Tensor::zeros(DType::kBF16, {1}));
  }
  for (const auto& [name, tensor] : converted())
    diffusers.emplace_back("transformer." + name, tensor);
  expect_same(load(whole), plain);
  expect_same(load(scales_called_weights), plain);
  expect_same(load(diffusers), plain);
}

// Rows that are quantized keep their codes and scales wherever they stand.
TEST_P(SingleFile, RowsOfQuantizedTensorsAreTheSame) {
  if (GetParam().family == std::string("sdxl")) GTEST_SKIP() << "its files have no fused tensors";
  const auto is_cut = [](const std::string& name) {
    return name.ends_with(".weight") &&
           (name.find(".qkv.") != std::string::npos || name.find("linear1") != std::string::npos ||
            name.find("adaLN") != std::string::npos);
  };
  for (const Format* format : {&formats::fp8, &formats::mxfp8, &formats::fp8_tensor}) {
    Tensors stored;
    std::vector<WeightInfo> infos;
    std::map<std::string, QuantizedTensor> whole;
    for (const auto& [name, tensor] : original_) {
      if (!is_cut(name)) {
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
    size_t compared = 0, cut = 0;
    for (const auto& [name, ranges] : rows_.items()) {
      const std::string tensor = ranges[0][0];
      cut += is_cut(tensor);
      const auto* q = std::get_if<QuantizedTensor>(&weights.at(name));
      if (q == nullptr) continue;
      const QuantizedTensor& source = whole.at(tensor);
      std::vector<uint8_t> codes, scales;
      for (const auto& range : ranges) {
        append(source.codes, range, codes);
        if (format->span != ScaleSpan::kTensor) append(source.scales, range, scales);
      }
      EXPECT_EQ(bytes_of(q->codes), codes) << name;
      EXPECT_EQ(bytes_of(q->scales), scales.empty() ? bytes_of(source.scales) : scales) << name;
      ++compared;
    }
    EXPECT_EQ(compared, cut) << format->name;
    EXPECT_GT(compared, whole.size()) << "none of them was cut";
  }
}

TEST_P(SingleFile, WhatIsMissingOrTooMuchIsNamedAsTheFileHasIt) {
  Tensors tensors = original_;
  const auto qkv = std::find_if(tensors.begin(), tensors.end(), [](const auto& item) {
    return item.first.ends_with("_attn.qkv.weight") ||
           item.first.ends_with("context_block.attn.qkv.weight") ||
           item.first.ends_with("middle_block.1.transformer_blocks.0.attn1.to_q.weight");
  });
  const std::string name = qkv->first;
  const size_t number = name.find(".0.");
  ASSERT_NE(number, std::string::npos);
  const std::string beyond = name.substr(0, number) + ".7." + name.substr(number + 3);
  qkv->first = beyond;
  const std::string error = error_of([&] { load(tensors); });
  EXPECT_THAT(error, HasSubstr("missing: '" + name + "'"));
  EXPECT_THAT(error, HasSubstr("unexpected: '" + beyond + "'"));
}

// Other families' files are not taken for this one's, whichever names they have.
TEST_P(SingleFile, IsOfNoOtherFamily) {
  for (const bool original : {true, false}) {
    write_safetensors(dir_ / "t.safetensors", original ? original_ : converted());
    const Checkpoint file = Checkpoint::open(dir_ / "t.safetensors");
    for (const Golden& other : kFiles) {
      EXPECT_EQ(other.row().is_denoiser(file), other.family == std::string(GetParam().family))
          << other;
    }
  }
}

// Heads as large as those of published models tell the config; SD3's are told by norms as well.
const Golden kTelling[] = {{"flux1", flux1::family, "aligned"},
                           {"flux2", flux2::family, "aligned"},
                           {"sd3", sd3::family, "aligned"},
                           {"sd3", sd3::family, "small"}};

class ConfigOfSingleFile : public testing::TestWithParam<Golden>, protected SingleFileCase {
 protected:
  ConfigOfSingleFile() : SingleFileCase(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(, ConfigOfSingleFile, testing::ValuesIn(kTelling),
                         testing::PrintToStringParamName());

TEST_P(ConfigOfSingleFile, IsToldByShapes) {
  for (const Tensors& tensors : {original_, converted()}) {
    const auto told = told_by(tensors);
    ASSERT_EQ(told->weights().size(), graph_->weights().size());
    for (const auto& [name, value] : graph_->weights()) {
      ASSERT_TRUE(told->weights().contains(name)) << name;
      EXPECT_EQ(told->weights().at(name).shape(), value.shape()) << name;
    }
    // What shapes do not tell, such as how positions turn heads, is as it is published.
    Weights weights;
    for (const auto& [name, tensor] : converted()) weights.emplace(name, tensor);
    EXPECT_EQ(floats(test::tested_program(told, weights).run(inputs()).at("sample")),
              floats(test::tested_program(graph_, weights).run(inputs()).at("sample")));
  }
}

// One tensor at a time of another shape, or missing: an Error here or on loading, and no crash.
TEST_P(ConfigOfSingleFile, HostileShapesAreErrors) {
  std::vector<Shape> shapes = {{}, {0}, {0, 4}, {4, 0}, {1}, {3, 5}, {1, 0, 1}, {5, 1, 1, 1}};
  const auto error = [&](const Tensors& tensors) {
    return error_of([&] {
      const auto path = dir_ / "hostile.safetensors";
      write_safetensors(path, tensors);
      const auto denoiser = row_.denoiser({dir_ / "no_base", path});
      const Checkpoint file = Checkpoint::open(path);
      const auto graph = denoiser->build(denoiser->smallest_shape(), {});
      load_weights(file, {&graph, 1}, denoiser->names(file));
    });
  };
  EXPECT_EQ(error(original_), "(no error)");
  // Of the first blocks, and of what is outside of them: where configs are read from.
  for (size_t i = 0; i < original_.size(); ++i) {
    const std::string& name = original_[i].first;
    if (name.ends_with(".bias")) continue;
    for (const Shape& shape : shapes) {
      Tensors tensors = original_;
      tensors[i].second = Tensor::zeros(DType::kBF16, shape);
      EXPECT_THAT(error(tensors), HasSubstr("hostile.safetensors"))
          << name << " " << fmt::format("{}", shape);
      if (i % shapes.size() != 0) break;  // each shape somewhere, one of them everywhere
    }
    std::rotate(shapes.begin(), shapes.begin() + 1, shapes.end());
    Tensors tensors = original_;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THAT(error(tensors), HasSubstr("hostile.safetensors")) << name << " is missing";
  }
}

// Heads as wide as SDXL's, its numbers of features and groups; attention and depths by level.
TEST(ConfigOfSingleFileAlone, AUnetTellsItsLevels) {
  const json config = {
      {"in_channels", 4},
      {"out_channels", 4},
      {"block_out_channels", {64, 64, 128}},
      {"down_block_types", {"DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"}},
      {"up_block_types", {"CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"}},
      {"attention_head_dim", {1, 1, 2}},
      {"transformer_layers_per_block", {1, 2, 3}},
      {"layers_per_block", 1},
      {"cross_attention_dim", 24},
      {"addition_embed_type", "text_time"},
      {"addition_time_embed_dim", 256},
      {"projection_class_embeddings_input_dim", 6 * 256 + 20},
      {"use_linear_projection", true}};
  const Family family = sdxl::family();
  const auto denoiser = test::tiny_denoiser(family, config);
  const DenoiserShape shape = denoiser->smallest_shape();
  const auto graph = denoiser->build(shape, {});
  Tensors tensors;
  for (const auto& [name, weight] : test::procedural_weights(*graph)) {
    tensors.emplace_back(name, std::get<Tensor>(weight));
  }
  const test::TempDir dir;
  write_safetensors(dir / "unet.safetensors", tensors);
  const auto told = family.denoiser({dir / "no_base", dir / "unet.safetensors"})->build(shape, {});
  ASSERT_EQ(told->weights().size(), graph->weights().size());
  for (const auto& [name, value] : graph->weights()) {
    ASSERT_TRUE(told->weights().contains(name)) << name;
    EXPECT_EQ(told->weights().at(name).shape(), value.shape()) << name;
  }
  ASSERT_EQ(told->nodes().size(), graph->nodes().size());
  for (size_t i = 0; i < graph->nodes().size(); ++i) {
    const auto type = [&](const Graph& g) {
      return g.values()[static_cast<size_t>(g.nodes()[i].outputs[0])].type;
    };
    EXPECT_EQ(type(*told), type(*graph)) << i;  // heads, too
  }
}

TEST(ConfigOfSingleFileAlone, WhatCannotBeToldIsNamed) {
  class Case : public SingleFileCase {
   public:
    explicit Case(const Golden& golden) : SingleFileCase(golden) {}
    std::string error() const {
      return error_of([&] { told_by(original_); });
    }
  };
  for (const auto& golden : {kFiles[0], kFiles[3]}) {
    EXPECT_THAT(Case(golden).error(),
                HasSubstr("heads of 16 need a transformer/config.json in the folder given by"));
  }
  EXPECT_THAT(Case({"sdxl", sdxl::family, "levels"}).error(),
              HasSubstr("blocks of 8 need a unet/config.json in the folder given by --base"));
  // Without norms of heads they are taken for 64 wide, which this model is too narrow for.
  EXPECT_THAT(Case({"sd3", sd3::family, "first"}).error(), HasSubstr("'num_attention_heads'"));
}

// Published models, by their numbers of parameters. SD3's table of positions is none of them.
TEST(SizesOfFamilies, PublishedModelsHaveAsManyParameters) {
  const std::pair<Family, std::vector<int64_t>> published[] = {
      {flux1::family(), {11'901'408'320, 11'891'178'560}},
      {flux2::family(), {3'875'544'576, 9'078'581'248}},
      {sd3::family(), {8'056'627'520, 2'243'171'520}},
      {sdxl::family(), {2'567'463'684}}};
  for (const auto& [family, counts] : published) {
    ASSERT_EQ(family.sizes.size(), counts.size());
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto denoiser = family.sizes[i].denoiser();
      const auto graph = denoiser->build(denoiser->smallest_shape(), {});
      int64_t count = 0;
      for (const auto& [name, value] : graph->weights()) {
        if (name != "pos_embed.pos_embed") count += value.shape().numel();
      }
      EXPECT_EQ(count, counts[i]) << family.name << " " << family.sizes[i].name;
    }
  }
}

}  // namespace
}  // namespace halftone
