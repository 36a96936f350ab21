// Adapters against diffusers with PEFT, in each way of naming, alone and together.
#include "halftone/models/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/io/regular_expression.h"
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

  using Adapters = std::vector<LoraAdapter>;
  Adapters load(const std::vector<std::string>& names) const {
    Adapters adapters;
    for (const auto& name : names) adapters.push_back(LoraAdapter::load(file(name), targets_));
    return adapters;
  }

  std::vector<float> run(const Adapters& loras, const std::vector<float>& strengths,
                         const Format* format = nullptr) const {
    CompileOptions how;
    if (format != nullptr) how.recipe = zimage::default_recipe(*format);
    Weights weights = weights_;
    auto inputs = inputs_;
    for (size_t slot = 0; slot < loras.size(); ++slot) {
      how.lora.push_back(loras[slot].sites());
      weights.merge(loras[slot].weights(slot));
      const std::vector<float> both(2, strengths[slot]);
      inputs[lora_strength_name(slot)] = loras[slot].strengths(both);
    }
    const auto compiled = compile(*graph_, how, test::tested_kernels(), test::tested_stream());
    quantize_weights(weights, compiled.report, cpu_kernels(), {2});
    return floats(test::tested_program(compiled.graph, weights).run(inputs).at("sample"));
  }
  std::vector<float> expected(const std::string& name) const {
    return floats(fixture_->tensor(name));
  }
  std::string load_error(const Tensors& tensors, const Metadata& metadata = {}) const {
    write_safetensors(file("bad"), tensors, metadata);
    const std::string error = error_of([&] { LoraAdapter::load(file("bad"), targets_); });
    // Everything but the numbers is known without reading them.
    if (error.find("NaN") == std::string::npos) {
      EXPECT_EQ(error_of([&] { LoraAdapter::examine(file("bad"), targets_); }), error);
    }
    return error;
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
    const Adapters loras = load({name});
    EXPECT_LE(relative_error(run(loras, {1}), expected(name)), 2e-5) << name;
    EXPECT_GT(relative_error(expected("none"), expected(name)), 0.1) << "proves nothing";
    EXPECT_LE(relative_error(run(loras, {0}), expected("none")), 2e-5) << name;
  }
}

TEST_F(Lora, IsExaminedAsItIsLoaded) {
  for (const char* name : {"peft", "kohya", "comfy"}) {
    const LoraReport known = LoraAdapter::examine(file(name), targets_);
    EXPECT_EQ(known.matched, load({name})[0].report().matched) << name;
    EXPECT_GT(known.matched, 0);
    EXPECT_EQ(known.unmatched, load({name})[0].report().unmatched) << name;
    EXPECT_EQ(error_of([&] { check_lora_file(file(name)); }), "(no error)");
  }
}

TEST_F(Lora, SeveralAtOnceWithStrengthsEqualDiffusers) {
  const json& s = case_["together"];
  EXPECT_LE(
      relative_error(run(load({"peft", "kohya", "comfy"}), {s["peft"], s["kohya"], s["comfy"]}),
                     expected("together")),
      2e-5);
}

// Beside a quantized base the adapter itself keeps its precision: what it adds to the result is
// nearer to what it adds in full precision than the base's own error.
TEST_F(Lora, AppliesBesideAQuantizedBase) {
  const Adapters loras = load({"peft"});
  for (const Format* format : {&formats::fp8, &formats::nvfp4}) {
    const auto with = run(loras, {1}, format), without = run(loras, {0}, format);
    const double base_error = relative_error(without, expected("none"));
    EXPECT_GT(base_error, 0.005) << format->name;
    EXPECT_LT(relative_error(with, expected("peft")), 2.5 * base_error) << format->name;
    EXPECT_GT(relative_error(with, without), 0.2);
  }
  EXPECT_THROW(attach_lora(*quantize_linears(*graph_, zimage::default_recipe(formats::fp8)).graph,
                           std::vector<LoraSites>{{4, {"not.there.weight"}}}),
               std::exception)
      << "a site that is no linear";
}

TEST_F(Lora, RowsOfABatchMayHaveStrengthsOfTheirOwn) {
  const Adapters loras = load({"kohya"});
  const std::vector<LoraSites> sites = {loras[0].sites()};
  auto graph = attach_lora(*graph_, sites);
  Weights weights = weights_;
  weights.merge(loras[0].weights(0));
  auto program = test::tested_program(graph, weights);
  auto inputs = inputs_;
  inputs[lora_strength_name(0)] = loras[0].strengths(std::vector<float>{0, 1});
  const Tensor sample = program.run(inputs).at("sample");
  const Tensor none = fixture_->tensor("none"), all = fixture_->tensor("kohya");
  EXPECT_LE(relative_error(floats(sample.rows(0, 1)), floats(none.rows(0, 1))), 2e-5);
  EXPECT_LE(relative_error(floats(sample.rows(1, 2)), floats(all.rows(1, 2))), 2e-5);
}

TEST_F(Lora, KeysThatMatchNothingAreListed) {
  Tensors tensors = tensors_of("peft", case_["files"]["peft"]);
  tensors.emplace_back("text_encoder.layers.0.lora_A.weight", Tensor::zeros(DType::kBF16, {4, 8}));
  tensors.emplace_back("lora_te_layers_0.dora_scale", Tensor::zeros(DType::kBF16, {96}));
  tensors.emplace_back("transformer.layers.9.attention.to_q.lora_A.weight",
                       Tensor::zeros(DType::kBF16, {4, 96}));
  write_safetensors(file("more"), tensors);
  const LoraAdapter adapter = LoraAdapter::load(file("more"), targets_);
  EXPECT_EQ(adapter.report().matched, 6);
  EXPECT_THAT(adapter.report().unmatched,
              testing::UnorderedElementsAre("text_encoder.layers.0.lora_A.weight",
                                            "lora_te_layers_0.dora_scale",
                                            "transformer.layers.9.attention.to_q.lora_A.weight"));
}

// Beside a whole low-rank pair, so that leaving the tensor out would give a picture.
TEST_F(Lora, WhatIsNotALowRankProductIsRefusedByName) {
  const std::pair<const char*, const char*> kinds[] = {
      {"dora_scale", "DoRA"},
      {"lora_magnitude_vector", "DoRA"},
      {"lora_magnitude_vector.weight", "DoRA"},
      {"hada_w1_a", "LoHa"},
      {"lokr_w2", "LoKr"},
      {"ia3_l", "(IA)^3"},
      {"on_input", "(IA)^3"},
      {"oft_blocks", "OFT"},
      {"oft_R.weight", "OFT"},
      {"boft_R", "BOFT"},
      {"lora_mid.weight", "LoCon"},
      {"lora_B.bias", "LoRA with biases"},
      {"diff", "differences of whole weights"},
      {"diff_b", "differences of whole weights"},
      {"w_norm", "differences of norms"},
      {"b_norm", "differences of norms"},
      {"weight", "whole weights"},
      {"bias", "whole weights"},
      {"modules_to_save.weight", "whole weights"},
      {"something_new", "no part of a low-rank adapter"},
  };
  for (const std::string base : {"transformer.layers.0.attention.to_q.",
                                 "lora_unet_layers_0_attention_to_q.", "layers.0.new_module."}) {
    for (const auto& [part, kind] : kinds) {
      Tensors tensors = tensors_of("peft", case_["files"]["peft"]);
      tensors.emplace_back(base + part, test::f32_tensor({2}, {0, 1}));
      const std::string error = load_error(tensors);
      EXPECT_THAT(error, HasSubstr("bad.safetensors: tensor '" + base + part + "'"));
      EXPECT_THAT(error, HasSubstr(kind));
    }
  }
}

// A module whose file has values so large that the product with activations, or with the strength,
// is no number: the adapter is to blame, not the model.
TEST_F(Lora, AnAdapterThatOverflowsIsNamed) {
  const std::string q = "transformer.layers.0.attention.to_q.";
  const auto filled = [](const Shape& shape, float value) {
    return test::f32_tensor(shape, std::vector<float>(static_cast<size_t>(shape.numel()), value));
  };
  const auto error = [&](float down, float up, float alpha, float strength) {
    write_safetensors(file("large"), {{q + "lora_A.weight", filled({4, 96}, down)},
                                      {q + "lora_B.weight", filled({96, 4}, up)},
                                      {q + "alpha", filled({1}, alpha)}});
    return error_of([&] { LoraAdapter::load(file("large"), targets_).check_strength(strength); });
  };
  const float inputs[][4] = {
      {1e38f, 1, 4, 1},  {1, 1e38f, 4, 1},     {1, 1e38f, 1e6f, 1},   {1e38f, 0, 4, 1},
      {0, 1e38f, 4, 1},  {1e10f, 1e10f, 4, 1}, {1e38f, 1, 4, 1e-30f}, {1, 1, 4, 1e30f},
      {1, 1, 4, -1e30f}, {1, 1, 3e38f, 1},     {1e20f, 1e20f, 4, 1},  {1, 1, 4, 3e38f},
  };
  for (const auto& [down, up, alpha, strength] : inputs) {
    EXPECT_THAT(error(down, up, alpha, strength),
                HasSubstr("large.safetensors: module 'transformer.layers.0.attention.to_q' has "))
        << down << " " << up << " " << alpha << " " << strength;
  }
  EXPECT_EQ(error(1, 1, 4, 1000), "(no error)");
}

class PeftLora : public Lora {
 protected:
  PeftLora() : peft_(fs::path(HALFTONE_TEST_DATA) / "zimage" / "lora_peft.safetensors") {
    described_ = parse_json(peft_.metadata().at("case"), "fixture");
    fs::create_directories(folder_);
    write_folder(described_["folder"]["config"]);
  }
  void SetUp() override {
    const std::string error = error_of([] { full_match("a+", "a", "test"); });
    if (error != "(no error)") GTEST_SKIP() << error;
  }

  Tensors tensors(const std::string& name) const {
    Tensors out;
    const std::string prefix = described_[name]["prefix"];
    for (const auto& [module, size] : described_[name]["modules"].items()) {
      const int64_t rows = size[0], columns = size[1], rank = size[2];
      const std::string down = prefix + module + ".lora_A.weight";
      const std::string up = prefix + module + ".lora_B.weight";
      out.emplace_back(down, test::procedural_weight(down, {rank, columns}));
      out.emplace_back(up, test::procedural_weight(up, {rows, rank}));
    }
    return out;
  }
  void write_folder(const json& config) const {
    write_safetensors(folder_ / "adapter_model.safetensors", tensors("folder"));
    test::write_file(folder_ / "adapter_config.json", config.dump());
  }
  std::string folder_error(const json& changes) const {
    json config = described_["folder"]["config"];
    config.merge_patch(changes);
    write_folder(config);
    return error_of([&] { LoraAdapter::load(folder_, targets_); });
  }
  double error_of_run(const fs::path& path, const std::string& name) const {
    const Adapters loras = {LoraAdapter::load(path, targets_)};
    return relative_error(run(loras, {1}), floats(peft_.tensor(name)));
  }

  SafetensorsFile peft_;
  json described_;
  fs::path folder_ = dir_ / "adapter";
};

TEST_F(PeftLora, AFolderEqualsPeft) {
  EXPECT_LE(error_of_run(folder_, "folder"), 2e-5);
  // The file inside of it is the same adapter.
  EXPECT_LE(error_of_run(folder_ / "adapter_model.safetensors", "folder"), 2e-5);
  EXPECT_GT(relative_error(expected("none"), floats(peft_.tensor("folder"))), 0.1);
  fs::rename(folder_ / "adapter_model.safetensors", file("without_settings"));
  EXPECT_GT(error_of_run(file("without_settings"), "folder"), 0.05) << "settings change nothing";
}

TEST_F(PeftLora, SettingsInMetadataEqualDiffusers) {
  json settings;
  for (const auto& [key, value] : described_["metadata"]["config"].items()) {
    settings["transformer." + key] = value;
  }
  settings["text_encoder.lora_alpha"] = 99;  // of a component that is not adapted
  settings["text_encoder.use_dora"] = true;
  write_safetensors(file("settings"), tensors("metadata"),
                    {{"lora_adapter_metadata", settings.dump()}});
  EXPECT_LE(error_of_run(file("settings"), "metadata"), 2e-5);
  write_safetensors(folder_ / "pytorch_lora_weights.safetensors", tensors("metadata"),
                    {{"lora_adapter_metadata", settings.dump()}});
  fs::remove(folder_ / "adapter_model.safetensors");
  EXPECT_LE(error_of_run(folder_, "metadata"), 2e-5) << "a folder that diffusers saved";
}

TEST_F(PeftLora, SettingsThatAreNotAppliedAreNamed) {
  const char* changes[] = {
      R"({"use_dora":true})",
      R"({"bias":"all"})",
      R"({"fan_in_fan_out":true})",
      R"({"modules_to_save":["cap_embedder"]})",
      R"({"peft_type":"LOHA"})",
      R"({"init_lora_weights":"pissa"})",
      R"({"lora_bias":true})",
      R"({"use_qalora":true})",
      R"({"layer_replication":[[0,1]]})",
      R"({"target_parameters":["x"]})",
      R"({"layers_to_transform":[0]})",
      R"({"trainable_token_indices":[1]})",
      R"({"alpha_pattern":{"to_q":1e300}})",
      R"({"alpha_pattern":[1]})",
      R"({"rank_pattern":{"to_q":0}})",
      R"({"r":0})",
      R"({"r":5})",
      R"({"r":"4"})",
      R"({"lora_alpha":1e300})",
      R"({"lora_alpha":"6"})",
      R"({"use_rslora":1})",
      R"({"target_modules":["to_q"]})",
      R"({"target_modules":7})",
      R"({"exclude_modules":["to_q"]})",
      R"({"some_new_field":1})",
      R"({"rank_pattern":{"to_k":3}})",
  };
  for (const char* change : changes) {
    const std::string field = json::parse(change).begin().key();
    const std::string error = folder_error(json::parse(change));
    EXPECT_THAT(error, HasSubstr("adapter_config.json: ")) << change;
    EXPECT_THAT(error, HasSubstr("'" + field + "'")) << change;
  }
  EXPECT_THAT(folder_error({{"alpha_pattern", {{"k$", 3}, {".*to_k", 4}, {"to_k", 5}}}}),
              HasSubstr("'alpha_pattern' has two values for module 'layers.0.attention.to_k'"));
  EXPECT_THAT(folder_error({{"alpha_pattern", {{"to_q(", 3}}}}),
              HasSubstr("'(.*\\.)?(to_q()' is not a regular expression"));
  EXPECT_THAT(folder_error({{"alpha_pattern", {{"(([a-z_0-9.]+)+)+[^a-z_0-9.]", 3}}}}),
              HasSubstr("takes too long"));
  EXPECT_EQ(folder_error({{"peft_version", "0.21.2"}, {"modules_to_save", json::array()}}),
            "(no error)");
  fs::remove(folder_ / "adapter_config.json");
  EXPECT_EQ(error_of([&] { LoraAdapter::load(folder_, targets_); }),
            (folder_ / "adapter_config.json").string() + ": no such file");
  fs::remove(folder_ / "adapter_model.safetensors");
  EXPECT_THAT(error_of([&] { LoraAdapter::load(folder_, targets_); }),
              HasSubstr("holds neither adapter_model.safetensors nor"));
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
      HasSubstr("bad.safetensors: 'transformer.use_dora' is true, which is not supported"));
  EXPECT_THAT(load_error({{q + "lora_A.weight", zeros({4, 96})},
                          {q + "lora_B.weight", zeros({96, 4})},
                          {q + "alpha", zeros({1})}},
                         {{"lora_adapter_metadata", R"({"transformer.r":4})"}}),
              HasSubstr("to_q' has an alpha, and PEFT's settings have another"));
  EXPECT_THAT(load_error({{q + "lora_A.weight", zeros({4, 96})},
                          {q + "lora_down.weight", zeros({4, 96})},
                          {q + "lora_B.weight", zeros({96, 4})}}),
              HasSubstr("to_q.lora_A.weight' a second time"));
}

}  // namespace
}  // namespace halftone
