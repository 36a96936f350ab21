// The same adapter of a tiny transformer in every naming that is found in files, against diffusers
// with PEFT. A family is a row of kFamilies; its fixture is made by tools/golden/lora.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/safetensors_writer.h"
#include "halftone/models/flux1/family.h"
#include "halftone/models/flux2/family.h"
#include "halftone/models/lora.h"
#include "halftone/models/sd3/family.h"
#include "halftone/models/sdxl/family.h"
#include "halftone/passes/compile.h"
#include "tests/support/backend.h"
#include "tests/support/denoiser_case.h"
#include "tests/support/errors.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::error_of;
using test::floats;
using test::Golden;
using test::relative_error;
using testing::HasSubstr;

const Golden kFamilies[] = {{"flux1", flux1::family, "small"},
                            {"flux2", flux2::family, "small"},
                            {"sd3", sd3::family, "small"},
                            {"sdxl", sdxl::family, "small"}};

// A module as a file has it.
struct LoraModule {
  std::string name;
  Tensor down, up;
};

struct LoraNaming {
  const char *prefix, *down, *up;
  bool underscores = false;
};
constexpr LoraNaming kDots = {"", ".lora_A.weight", ".lora_B.weight"};

using Tensors = std::vector<std::pair<std::string, Tensor>>;

class LoraNames : public testing::TestWithParam<Golden>, protected test::DenoiserCase {
 protected:
  LoraNames() : DenoiserCase(GetParam()), lora_(data(GetParam(), "lora")) {
    described_ = parse_json(lora_.metadata().at("case"), "fixture");
    graph_ = denoiser_->build(shape(), {});
    weights_ = test::procedural_weights(*graph_);
    targets_ = denoiser_->lora_targets(*graph_);
  }

  json group(const std::string& name) const { return described_["groups"][name]; }
  json all_modules() const {
    json all = group("blocks");
    all.update(group("outside"));
    return all;
  }
  bool is(const char* family) const { return GetParam().family == std::string(family); }

  // Modules of single files, as the fixture describes them.
  std::vector<LoraModule> original(const json& modules) const {
    std::vector<LoraModule> result;
    const int64_t rank = described_["rank"];
    for (const auto& [name, size] : modules.items()) {
      const int64_t rows = size[0], columns = size[1];
      result.push_back({name, test::procedural_weight(name + ".lora_A.weight", {rank, columns}),
                        test::procedural_weight(name + ".lora_B.weight", {rows, rank})});
    }
    return result;
  }
  // The same as diffusers has them: a module for each of q, k and v, the scale before the shift.
  std::vector<LoraModule> split(const json& modules) const {
    std::vector<LoraModule> result;
    for (const LoraModule& m : original(modules)) {
      for (const auto& [name, ranges] : modules[m.name][2].items()) {
        int64_t rows = 0;
        for (const auto& range : ranges) rows += range[1].get<int64_t>() - range[0].get<int64_t>();
        Tensor up = Tensor::empty(m.up.dtype(), {rows, m.up.shape()[1]});
        auto to = up.mutable_bytes().begin();
        for (const auto& range : ranges) {
          const Tensor part = m.up.rows(range[0].get<int64_t>(), range[1].get<int64_t>());
          to = std::copy(part.bytes().begin(), part.bytes().end(), to);
        }
        result.push_back({name, m.down, up});
      }
    }
    return result;
  }

  Tensors tensors_of(const std::vector<LoraModule>& modules, const LoraNaming& naming,
                     bool alpha = true) const {
    Tensors tensors;
    for (const LoraModule& m : modules) {
      std::string name = m.name;
      if (naming.underscores) std::replace(name.begin(), name.end(), '.', '_');
      name = naming.prefix + name;
      tensors.emplace_back(name + naming.down, m.down);
      tensors.emplace_back(name + naming.up, m.up);
      if (!alpha) continue;
      tensors.emplace_back(name + ".alpha",
                           test::f32_tensor({1}, {described_["alpha"].get<float>()}));
    }
    return tensors;
  }
  LoraAdapter load(const Tensors& tensors) const {
    write_safetensors(dir_ / "lora.safetensors", tensors);
    return LoraAdapter::load(dir_ / "lora.safetensors", targets_);
  }
  std::string load_error(const Tensors& tensors) const {
    return error_of([&] { load(tensors); });
  }
  std::vector<float> run(const LoraAdapter& adapter, float strength = 1) const {
    Weights weights = weights_;
    weights.merge(adapter.weights(0));
    auto given = inputs();
    const std::vector<float> strengths(static_cast<size_t>(latents_.shape()[0]), strength);
    given[lora_strength_name(0)] = adapter.strengths(strengths);
    CompileOptions how;
    how.lora = {adapter.sites()};
    return floats(
        test::tested_program(test::tested_compile(*graph_, how), weights).run(given).at("sample"));
  }
  std::vector<float> run(const std::vector<LoraModule>& modules, const LoraNaming& naming) const {
    const LoraAdapter adapter = load(tensors_of(modules, naming));
    EXPECT_THAT(adapter.report().unmatched, testing::IsEmpty());
    return run(adapter);
  }
  std::vector<float> expected(const std::string& name) const { return floats(lora_.tensor(name)); }

  test::TempDir dir_;
  SafetensorsFile lora_;
  json described_;
  std::shared_ptr<Graph> graph_;
  Weights weights_;
  LoraTargets targets_;
};
INSTANTIATE_TEST_SUITE_P(, LoraNames, testing::ValuesIn(kFamilies),
                         testing::PrintToStringParamName());

TEST_P(LoraNames, EveryNamingEqualsDiffusers) {
  EXPECT_GT(relative_error(expected("none"), expected("all")), 0.1) << "proves nothing";
  const auto single = original(all_modules()), diffusers = split(all_modules());
  if (is("sdxl")) {  // whose files have q, k and v apart, too
    EXPECT_EQ(diffusers.size(), single.size());
  } else {
    EXPECT_GT(diffusers.size(), single.size());
  }
  const LoraNaming of_single[] = {{"diffusion_model.", ".lora_A.weight", ".lora_B.weight"},
                                  {"diffusion_model.", ".lora_down.weight", ".lora_up.weight"},
                                  {"model.diffusion_model.", ".lora_A.weight", ".lora_B.weight"},
                                  {"base_model.model.", ".lora_A.weight", ".lora_B.weight"},
                                  {"lora_unet_", ".lora_down.weight", ".lora_up.weight", true}};
  const LoraNaming of_diffusers[] = {
      {"transformer.", ".lora_A.weight", ".lora_B.weight"},
      {"transformer.", ".lora.down.weight", ".lora.up.weight"},
      {"transformer.", ".lora_down.weight", ".lora_up.weight"},
      {"unet.", ".lora_A.weight", ".lora_B.weight"},
      {"unet.", ".lora.down.weight", ".lora.up.weight"},
      {"diffusion_model.", ".lora_A.weight", ".lora_B.weight"},
      {"base_model.model.", ".lora_A.weight", ".lora_B.weight"},
      {"base_model.model.transformer.", ".lora_A.default.weight", ".lora_B.default.weight"},
      kDots,
      {"lora_unet_", ".lora_down.weight", ".lora_up.weight", true},
      {"lora_transformer_", ".lora_down.weight", ".lora_up.weight", true},
      {"lycoris_", ".lora_down.weight", ".lora_up.weight", true}};
  const LoraAdapter adapter = load(tensors_of(diffusers, kDots));
  const auto first = run(adapter);
  EXPECT_LE(relative_error(first, expected("all")), 2e-5);
  EXPECT_LE(relative_error(run(split(group("blocks")), kDots), expected("blocks")), 2e-5);
  // Factors that are equal are the same adapter.
  const auto expect_same = [&](const std::vector<LoraModule>& modules, const LoraNaming& naming) {
    const LoraAdapter other = load(tensors_of(modules, naming));
    EXPECT_THAT(other.report().unmatched, testing::IsEmpty()) << naming.prefix << naming.down;
    ASSERT_EQ(other.modules().size(), adapter.modules().size()) << naming.prefix << naming.down;
    for (const auto& [weight, module] : adapter.modules()) {
      EXPECT_EQ(floats(other.modules().at(weight).down), floats(module.down)) << weight;
      EXPECT_EQ(floats(other.modules().at(weight).up), floats(module.up)) << weight;
    }
  };
  for (const LoraNaming& naming : of_single) expect_same(single, naming);
  for (const LoraNaming& naming : of_diffusers) expect_same(diffusers, naming);
  EXPECT_EQ(run(load(tensors_of(single, of_single[4]))), first);
}

// Modules that some tools' files have and no checkpoint.
TEST_P(LoraNames, OtherToolsModulesEqualDiffusers) {
  const auto scaled = [&](std::vector<LoraModule> modules) {  // without an alpha it is the rank
    const float scale = described_["alpha"].get<float>() / described_["rank"].get<float>();
    for (LoraModule& m : modules) {
      Tensor up = Tensor::empty(DType::kF32, m.up.shape());
      const auto from = floats(m.up);
      std::transform(from.begin(), from.end(), up.mutable_as<float>().begin(),
                     [&](float v) { return v * scale; });
      m.up = up;
    }
    return modules;
  };
  if (is("flux1")) {
    for (const char* prefix : {"", "diffusion_model."}) {
      const LoraNaming xlabs = {prefix, ".down.weight", ".up.weight"};
      const LoraAdapter adapter = load(tensors_of(scaled(original(group("xlabs"))), xlabs, false));
      EXPECT_THAT(adapter.report().unmatched, testing::IsEmpty());
      EXPECT_LE(relative_error(run(adapter), expected("xlabs")), 2e-5);
    }
    const LoraNaming comfy = {"diffusion_model.", ".lora_down.weight", ".lora_up.weight"};
    EXPECT_LE(relative_error(run(original(group("parts")), comfy), expected("parts")), 2e-5);
  }
  if (is("sdxl")) {  // processors of diffusers' older versions have linears of attention alone
    std::vector<LoraModule> all = split(group("blocks")), attention;
    for (const LoraModule& m : all) {
      if (m.name.find(".attn") != m.name.npos) attention.push_back(m);
    }
    ASSERT_EQ(attention.size(), 3u);
    const auto known = run(load(tensors_of(attention, kDots)));
    for (LoraModule& m : attention) {
      const size_t at = m.name.find(".to_");
      const std::string linear = m.name.substr(at + 1);
      m.name = m.name.substr(0, at) + ".processor." + (linear == "to_out.0" ? "to_out" : linear) +
               "_lora";
    }
    EXPECT_EQ(run(attention, {"unet.", ".down.weight", ".up.weight"}), known);
  }
  if (is("flux2")) {  // some files have lost the first letters of transformer_blocks
    auto modules = split(group("blocks"));
    for (LoraModule& m : modules) {
      if (m.name.starts_with("transformer_blocks.")) m.name = m.name.substr(4);
    }
    const LoraNaming naming = {"diffusion_model.", ".lora_A.weight", ".lora_B.weight"};
    EXPECT_LE(relative_error(run(modules, naming), expected("blocks")), 2e-5);
  }
}

// Tools that train q, k and v apart and store them as one write zeros beside each one's part of B:
// ranks that are not a target's are not computed for it.
TEST_P(LoraNames, AFusedModuleOfSeparateAdaptersIsTheirSumAndNotOfThreeTimesTheRank) {
  const int64_t rank = described_["rank"];
  const float alpha = described_["alpha"];
  size_t tested = 0;
  const json blocks = group("blocks");  // items() keeps none
  for (const auto& [name, size] : blocks.items()) {
    const auto parts = static_cast<int64_t>(size[2].size());
    if (parts == 1) continue;
    const int64_t rows = size[0], columns = size[1], ranks = parts * rank;
    std::vector<LoraModule> apart;
    Tensor down = Tensor::zeros(DType::kF32, {ranks, columns});
    Tensor up = Tensor::zeros(DType::kF32, {rows, ranks});
    for (const auto& [target, ranges] : size[2].items()) {
      const int64_t begin = ranges[0][0], end = ranges[0][1];
      const auto i = static_cast<int64_t>(apart.size());
      const LoraModule m = {target, test::procedural_uniform(target + ".A", {rank, columns}, 0.3f),
                            test::procedural_uniform(target + ".B", {end - begin, rank}, 0.3f)};
      std::copy(m.down.as<float>().begin(), m.down.as<float>().end(),
                down.mutable_as<float>().begin() + i * rank * columns);
      for (int64_t r = 0; r < end - begin; ++r) {
        for (int64_t k = 0; k < rank; ++k) {
          up.mutable_as<float>()[(begin + r) * ranks + i * rank + k] =
              m.up.as<float>()[r * rank + k];
        }
      }
      apart.push_back(m);
    }
    const LoraAdapter separate = load(tensors_of(apart, kDots));
    // Files have an alpha for all ranks together, which is larger then.
    Tensors tensors = tensors_of({{name, down, up}}, kDots, false);
    tensors.emplace_back(name + ".alpha",
                         test::f32_tensor({1}, {alpha * static_cast<float>(parts)}));
    const LoraAdapter fused = load(tensors);
    EXPECT_EQ(fused.rank(), rank) << name;
    ASSERT_EQ(fused.modules().size(), static_cast<size_t>(parts)) << name;
    for (const auto& [weight, module] : separate.modules()) {
      EXPECT_EQ(floats(fused.modules().at(weight).down), floats(module.down)) << weight;
      EXPECT_EQ(floats(fused.modules().at(weight).up), floats(module.up)) << weight;
    }
    // Nothing is lost where one of them was not trained.
    const json first = size[2].begin().value()[0];
    const auto begin = first[0].get<int64_t>(), end = first[1].get<int64_t>();
    std::fill_n(up.mutable_as<float>().begin() + begin * ranks, (end - begin) * ranks, 0.0f);
    const LoraAdapter less = load(tensors_of({{name, down, up}}, kDots));
    EXPECT_EQ(less.rank(), rank);
    EXPECT_EQ(floats(less.modules().at(apart[0].name + ".weight").up),
              std::vector<float>(static_cast<size_t>(apart[0].up.shape()[0])));
    ++tested;
  }
  if (is("sdxl")) {
    EXPECT_EQ(tested, 0u);
  } else {
    EXPECT_GE(tested, 2u);
  }
}

// The same adapter under two namings in one file is applied once.
TEST_P(LoraNames, TwoNamingsInOneFileCountOnce) {
  const auto diffusers = split(group("blocks"));
  Tensors tensors = tensors_of(diffusers, {"transformer.", ".lora_A.weight", ".lora_B.weight"});
  const LoraNaming kohya = {"lora_unet_", ".lora_down.weight", ".lora_up.weight", true};
  for (auto& tensor : tensors_of(original(group("blocks")), kohya)) tensors.push_back(tensor);
  const LoraAdapter adapter = load(tensors);
  EXPECT_LE(relative_error(run(adapter), expected("blocks")), 2e-5);
  EXPECT_EQ(adapter.report().matched, static_cast<int>(diffusers.size()));
  EXPECT_EQ(adapter.report().unmatched.size(), diffusers.size());
  EXPECT_THAT(adapter.report().unmatched[0], HasSubstr("a second time for"));
}

// What changes nothing, and what is for text encoders, is said and does no harm.
TEST_P(LoraNames, WhatIsNotAppliedIsReported) {
  const LoraNaming kohya = {"lora_unet_", ".lora_down.weight", ".lora_up.weight", true};
  const auto good = tensors_of(original(group("blocks")), kohya);
  const std::string module = good[0].first.substr(0, good[0].first.find('.'));
  const char* others[] = {"lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_down.weight",
                          "lora_te2_text_model_encoder_layers_0_mlp_fc1.alpha",
                          "lora_te3_encoder_block_0_layer_0_SelfAttention_q.lora_up.weight",
                          "text_encoders.t5xxl.transformer.encoder.block.0.x.lora_down.weight",
                          "text_encoders.clip_l.transformer.text_model.embeddings.x.diff",
                          "text_encoder_2.encoder.block.0.layer.0.lora_A.weight",
                          "t5xxl.encoder.block.0.x.lora_A.weight"};
  Tensors tensors = good;
  for (const char* name : others) tensors.emplace_back(name, test::f32_tensor({1, 2}, {1, 2}));
  const std::string differences[] = {module + ".diff_b", module + ".diff",
                                     "diffusion_model.some.norm.query_norm.diff",
                                     module + ".w_norm"};
  for (const std::string& name : differences) {
    tensors.emplace_back(name, Tensor::zeros(DType::kBF16, {4}));
  }
  const LoraAdapter adapter = load(tensors);
  EXPECT_LE(relative_error(run(adapter), expected("blocks")), 2e-5);
  std::vector<std::string> said(std::begin(others), std::end(others));
  for (const std::string& name : differences) said.push_back(name + " (all zeros)");
  EXPECT_THAT(adapter.report().unmatched, testing::UnorderedElementsAreArray(said));

  for (const std::string& name : differences) {  // one that is not zero would be missed
    for (const float v : {1e-30f, NAN}) {
      tensors = good;
      tensors.emplace_back(name, test::f32_tensor({2}, {0, v}));
      EXPECT_THAT(load_error(tensors), HasSubstr("tensor '" + name +
                                                 "' is part of an adapter of "
                                                 "another kind: differences"));
    }
  }
}

TEST_P(LoraNames, OtherKindsAreRefusedByName) {
  const auto good = tensors_of(original(group("blocks")), kDots);
  const json blocks = group("blocks"), outside = group("outside");
  const std::string module = blocks.begin().key();
  const auto error = [&](const std::string& name, const Shape& shape) {
    Tensors tensors = good;
    tensors.emplace_back(name, test::procedural_uniform(name, shape));
    return load_error(tensors);
  };
  EXPECT_THAT(error(module + ".lokr_w1", {4, 4}),
              HasSubstr("tensor '" + module +
                        ".lokr_w1' is part of an adapter of another kind: "
                        "LoKr"));
  // The vendor's adapters for control have biases, norms and an embedder that is twice as wide.
  Tensors control = good;
  control.emplace_back(module + ".lora_B.bias", Tensor::zeros(DType::kF32, {4}));
  control.emplace_back("double_blocks.0.img_attn.norm.query_norm.scale",
                       Tensor::zeros(DType::kF32, {4}));
  EXPECT_THAT(load_error(control), HasSubstr("adapters for control (Canny, Depth)"));
  const char* embedder = is("sd3") ? "context_embedder" : is("sdxl") ? "label_emb.0.2" : "img_in";
  const json& size = outside[embedder];
  const int64_t rows = size[0], columns = size[1];
  EXPECT_THAT(load_error(tensors_of({{embedder, Tensor::zeros(DType::kF32, {2, 2 * columns}),
                                      Tensor::zeros(DType::kF32, {rows, 2})}},
                                    kDots)),
              HasSubstr("adapters for control, which widen a model's input, are not supported"));
}

}  // namespace
}  // namespace halftone
