// Adapters against diffusers with PEFT, in each way of naming, alone and together.
#include "halftone/models/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/models/weights.h"
#include "halftone/models/zimage/names.h"
#include "halftone/models/zimage/transformer.h"
#include "halftone/passes/fuse.h"
#include "halftone/passes/lower.h"
#include "tests/support/backend.h"
#include "tests/support/errors.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_of;
using test::floats;
using test::relative_error;
using testing::HasSubstr;

// The transformer of the "ragged" fixture, and files as tools/golden/zimage_lora.py writes them.
class Lora : public testing::Test {
 protected:
  Lora() {
    const fs::path data = fs::path(HALFTONE_TEST_DATA) / "zimage";
    fixture_ = std::make_unique<SafetensorsFile>(data / "lora.safetensors");
    case_ = parse_json(fixture_->metadata().at("case"), "fixture");
    const SafetensorsFile base(data / "transformer_ragged.safetensors");
    const json ragged = parse_json(base.metadata().at("case"), "fixture");
    config_ = zimage::parse_transformer_config(ragged["config"], "fixture");
    const float unit = std::sqrt(3.0f);
    std::vector<Tensor> captions;
    for (size_t i = 0; i < 2; ++i) {
      captions.push_back(test::procedural_uniform(
          fmt::format("ragged.caption.{}", i),
          {ragged["captions"][i].get<int64_t>(), config_.cap_feat_dim}, unit));
    }
    const Tensor latents = test::procedural_uniform("ragged.latents", {2, 16, 8, 12}, unit);
    const auto time = ragged["t"].get<std::vector<float>>();
    shape_ = zimage::shape_for(latents, captions);
    inputs_ = zimage::transformer_inputs(config_, shape_, latents, time, captions);
    graph_ = zimage::build_transformer(config_, shape_, {});
    weights_ = test::procedural_weights(*graph_);
    targets_ = zimage::lora_targets(*graph_);
    for (const auto& [name, description] : case_["files"].items()) write(name, description);
  }

  using Tensors = std::vector<std::pair<std::string, Tensor>>;

  Tensors tensors_of(const std::string& name, const json& f) const {
    Tensors tensors;
    const int64_t rank = f["rank"];
    for (const auto& [module, size] : f["modules"].items()) {
      std::string base = module;
      if (f["separator"] == "_") std::replace(base.begin(), base.end(), '.', '_');
      base = f["prefix"].get<std::string>() + base + ".";
      const std::string down = base + f["suffixes"][0].get<std::string>();
      const std::string up = base + f["suffixes"][1].get<std::string>();
      tensors.emplace_back(down, test::procedural_weight(down, {rank, size[1].get<int64_t>()}));
      tensors.emplace_back(up, test::procedural_weight(up, {size[0].get<int64_t>(), rank}));
      if (name == "kohya") {
        tensors.emplace_back(base + "alpha", test::f32_tensor({1}, {f["alpha"].get<float>()}));
      }
    }
    return tensors;
  }

  void write(const std::string& name, const json& f) const {
    Metadata metadata;
    if (name == "peft") {
      metadata["lora_adapter_metadata"] =
          json{{"transformer.r", f["rank"]}, {"transformer.lora_alpha", f["alpha"]}}.dump();
    }
    write_safetensors(file(name), tensors_of(name, f), metadata);
  }
  fs::path file(const std::string& name) const { return dir_ / (name + ".safetensors"); }

  LoraStack stack(const std::vector<std::string>& names) const {
    std::vector<LoraAdapter> adapters;
    for (const auto& name : names) adapters.push_back(LoraAdapter::load(file(name), targets_));
    return LoraStack(std::move(adapters));
  }

  std::vector<float> run(const LoraStack& loras, const std::vector<float>& strengths,
                         const Format* format = nullptr) const {
    auto graph = attach_lora(*graph_, loras.sites());
    Weights weights = weights_;
    weights.merge(loras.weights());
    if (format != nullptr) {
      const auto quantized = quantize_linears(*graph, zimage::default_recipe(*format));
      quantize_weights(weights, quantized.report, cpu_kernels(), {2});
      graph = lower(*quantized.graph);
    }
    auto inputs = inputs_;
    inputs[kLoraStrength] = loras.strengths(2, strengths);
    return floats(
        test::tested_program(test::tested_compile(*graph), weights).run(inputs).at("sample"));
  }
  std::vector<float> expected(const std::string& name) const {
    return floats(fixture_->tensor(name));
  }
  std::string load_error(const Tensors& tensors, const Metadata& metadata = {}) const {
    write_safetensors(file("bad"), tensors, metadata);
    return error_of([&] { LoraAdapter::load(file("bad"), targets_); });
  }

  test::TempDir dir_;
  std::unique_ptr<SafetensorsFile> fixture_;
  json case_;
  zimage::TransformerConfig config_;
  zimage::TransformerShape shape_;
  std::map<std::string, Tensor> inputs_;
  std::shared_ptr<Graph> graph_;
  Weights weights_;
  LoraTargets targets_;
};

TEST_F(Lora, EachWayOfNamingEqualsDiffusers) {
  for (const char* name : {"peft", "kohya", "comfy"}) {
    const LoraStack loras = stack({name});
    EXPECT_LE(relative_error(run(loras, {1}), expected(name)), 2e-5) << name;
    EXPECT_GT(relative_error(expected("none"), expected(name)), 0.1) << "proves nothing";
    EXPECT_LE(relative_error(run(loras, {0}), expected("none")), 2e-5) << name;
  }
}

TEST_F(Lora, SeveralAtOnceWithStrengthsEqualDiffusers) {
  const json& s = case_["together"];
  EXPECT_LE(
      relative_error(run(stack({"peft", "kohya", "comfy"}), {s["peft"], s["kohya"], s["comfy"]}),
                     expected("together")),
      2e-5);
}

// Beside a quantized base the adapter itself keeps its precision: what it adds to the result is
// nearer to what it adds in full precision than the base's own error.
TEST_F(Lora, AppliesBesideAQuantizedBase) {
  const LoraStack loras = stack({"peft"});
  for (const Format* format : {&formats::fp8, &formats::nvfp4}) {
    const auto with = run(loras, {1}, format), without = run(loras, {0}, format);
    const double base_error = relative_error(without, expected("none"));
    EXPECT_GT(base_error, 0.005) << format->name;
    EXPECT_LT(relative_error(with, expected("peft")), 2.5 * base_error) << format->name;
    EXPECT_GT(relative_error(with, without), 0.2);
  }
  EXPECT_THROW(attach_lora(*quantize_linears(*graph_, zimage::default_recipe(formats::fp8)).graph,
                           {4, {"not.there.weight"}}),
               std::exception)
      << "a site that is no linear";
}

TEST_F(Lora, RowsOfABatchMayHaveStrengthsOfTheirOwn) {
  const LoraStack loras = stack({"kohya"});
  auto graph = attach_lora(*graph_, loras.sites());
  Weights weights = weights_;
  weights.merge(loras.weights());
  auto program = test::tested_program(graph, weights);
  auto inputs = inputs_;
  Tensor strengths = loras.strengths(2, std::vector<float>{1});
  auto values = strengths.mutable_as<float>();
  std::fill(values.begin(), values.begin() + 3, 0.0f);  // the first row's
  inputs[kLoraStrength] = strengths;
  const Tensor sample = program.run(inputs).at("sample");
  const Tensor none = fixture_->tensor("none"), all = fixture_->tensor("kohya");
  EXPECT_LE(relative_error(floats(sample.rows(0, 1)), floats(none.rows(0, 1))), 2e-5);
  EXPECT_LE(relative_error(floats(sample.rows(1, 2)), floats(all.rows(1, 2))), 2e-5);
}

TEST_F(Lora, KeysThatMatchNothingAreListed) {
  Tensors tensors = tensors_of("peft", case_["files"]["peft"]);
  tensors.emplace_back("text_encoder.layers.0.lora_A.weight", Tensor::zeros(DType::kBF16, {4, 8}));
  tensors.emplace_back("transformer.layers.0.attention.to_q.dora_scale",
                       Tensor::zeros(DType::kBF16, {96}));
  write_safetensors(file("more"), tensors);
  const LoraAdapter adapter = LoraAdapter::load(file("more"), targets_);
  EXPECT_EQ(adapter.report().matched, 6);
  EXPECT_THAT(adapter.report().unmatched,
              testing::UnorderedElementsAre("text_encoder.layers.0.lora_A.weight",
                                            "transformer.layers.0.attention.to_q.dora_scale"));
}

TEST_F(Lora, BadFilesAreNamed) {
  const auto zeros = [](const Shape& shape) { return Tensor::zeros(DType::kF32, shape); };
  const std::string q = "transformer.layers.0.attention.to_q.";
  EXPECT_THAT(load_error({{"x.lora_A.weight", zeros({1, 1})}}),
              HasSubstr("no tensor matches a linear of the model: 'x.lora_A.weight'"));
  EXPECT_THAT(load_error({{q + "lora_A.weight", zeros({4, 96})}}),
              HasSubstr("module 'transformer.layers.0.attention.to_q' has no lora_B"));
  EXPECT_THAT(
      load_error({{q + "lora_A.weight", zeros({4, 95})}, {q + "lora_B.weight", zeros({96, 4})}}),
      HasSubstr("to_q.lora_A.weight' is [4, 95] instead of [rank, 96]"));
  EXPECT_THAT(
      load_error({{q + "lora_A.weight", zeros({4, 96})}, {q + "lora_B.weight", zeros({96, 5})}}),
      HasSubstr("to_q.lora_B.weight' is [96, 5] instead of [96, 4]"));
  EXPECT_THAT(
      load_error({{q + "lora_A.weight", zeros({4, 96})},
                  {q + "lora_B.weight", test::f32_tensor({96, 4}, std::vector<float>(384, NAN))}}),
      HasSubstr("to_q.lora_B.weight' holds NaN or Inf"));
  EXPECT_THAT(
      load_error({{q + "lora_A.weight", zeros({4, 96})}, {q + "lora_B.weight", zeros({96, 4})}},
                 {{"lora_adapter_metadata", R"({"transformer.use_dora":true})"}}),
      HasSubstr("is a DoRA adapter"));
}

}  // namespace
}  // namespace halftone
