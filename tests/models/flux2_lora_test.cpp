// The same adapter of a tiny FLUX.2 transformer in every naming that is found in files, against
// diffusers with PEFT.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/safetensors_writer.h"
#include "halftone/models/flux2/names.h"
#include "halftone/models/lora.h"
#include "halftone/passes/compile.h"
#include "tests/support/backend.h"
#include "tests/support/errors.h"
#include "tests/support/flux2_case.h"
#include "tests/support/temp_dir.h"

namespace halftone::flux2 {
namespace {

using nlohmann::json;
using test::floats;
using test::relative_error;

// A module as a file has it.
struct Module {
  std::string name;
  Tensor down, up;
};

struct Naming {
  const char *prefix, *down, *up;
  bool underscores = false;
};
constexpr Naming kDots = {"", ".lora_A.weight", ".lora_B.weight"};

class Flux2Lora : public testing::Test, protected test::Flux2Case {
 protected:
  Flux2Lora() : test::Flux2Case("small"), lora_(test::flux2_data("lora")) {
    case_ = parse_json(lora_.metadata().at("case"), "fixture");
    graph_ = build_transformer(config_, shape_, {});
    weights_ = test::procedural_weights(*graph_);
    targets_ = lora_targets(*graph_);
  }

  // Modules of single files, as the fixture describes them.
  std::vector<Module> original(const json& modules) const {
    std::vector<Module> result;
    const int64_t rank = case_["rank"];
    for (const auto& [name, size] : modules.items()) {
      const int64_t rows = size[0], columns = size[1];
      result.push_back({name, test::procedural_weight(name + ".lora_A.weight", {rank, columns}),
                        test::procedural_weight(name + ".lora_B.weight", {rows, rank})});
    }
    return result;
  }
  // The same as diffusers has them: a module for each of q, k and v, the scale before the shift.
  std::vector<Module> split(const json& modules) const {
    std::vector<Module> result;
    for (const Module& m : original(modules)) {
      const json& names = modules[m.name][2];
      const auto parts = static_cast<int64_t>(names.size());
      const int64_t rows = m.up.shape()[0] / parts;
      for (int64_t i = 0; i < parts; ++i) {
        Tensor up = m.up.rows(i * rows, (i + 1) * rows);
        const auto& swapped = case_["swapped"];
        if (std::find(swapped.begin(), swapped.end(), m.name) != swapped.end()) {
          Tensor turned = Tensor::empty(up.dtype(), up.shape());
          const auto from = up.as<bf16>();
          std::rotate_copy(from.begin(), from.begin() + up.numel() / 2, from.end(),
                           turned.mutable_as<bf16>().begin());
          up = turned;
        }
        result.push_back({names[static_cast<size_t>(i)].get<std::string>(), m.down, up});
      }
    }
    return result;
  }
  json all_modules() const {
    json all = case_["blocks"];
    all.update(case_["outside"]);
    return all;
  }

  std::vector<std::pair<std::string, Tensor>> tensors_of(const std::vector<Module>& modules,
                                                         const Naming& naming) const {
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const Module& m : modules) {
      std::string name = m.name;
      if (naming.underscores) std::replace(name.begin(), name.end(), '.', '_');
      name = naming.prefix + name;
      tensors.emplace_back(name + naming.down, m.down);
      tensors.emplace_back(name + naming.up, m.up);
      tensors.emplace_back(name + ".alpha", test::f32_tensor({1}, {case_["alpha"].get<float>()}));
    }
    return tensors;
  }
  std::vector<float> run(const std::vector<Module>& modules, const Naming& naming) const {
    write_safetensors(dir_ / "lora.safetensors", tensors_of(modules, naming));
    const LoraAdapter adapter = LoraAdapter::load(dir_ / "lora.safetensors", targets_);
    EXPECT_TRUE(adapter.report().unmatched.empty()) << adapter.report().unmatched[0];
    Weights weights = weights_;
    weights.merge(adapter.weights(0));
    auto inputs = inputs_;
    const std::vector<float> full(static_cast<size_t>(shape_.batch), 1.0f);
    inputs[lora_strength_name(0)] = adapter.strengths(full);
    CompileOptions how;
    how.lora = {adapter.sites()};
    return floats(
        test::tested_program(test::tested_compile(*graph_, how), weights).run(inputs).at("sample"));
  }

  test::TempDir dir_;
  SafetensorsFile lora_;
  json case_;
  std::shared_ptr<Graph> graph_;
  Weights weights_;
  LoraTargets targets_;
};

TEST_F(Flux2Lora, EveryNamingEqualsDiffusers) {
  const auto expected = floats(lora_.tensor("all"));
  EXPECT_GT(relative_error(floats(lora_.tensor("none")), expected), 0.1) << "proves nothing";
  const auto single = original(all_modules()), diffusers = split(all_modules());
  const Naming of_single[] = {{"diffusion_model.", ".lora_A.weight", ".lora_B.weight"},
                              {"diffusion_model.", ".lora_down.weight", ".lora_up.weight"},
                              {"model.diffusion_model.", ".lora_A.weight", ".lora_B.weight"},
                              {"lora_unet_", ".lora_down.weight", ".lora_up.weight", true}};
  const Naming of_diffusers[] = {
      {"transformer.", ".lora_A.weight", ".lora_B.weight"},
      {"diffusion_model.", ".lora_A.weight", ".lora_B.weight"},
      {"base_model.model.", ".lora_A.weight", ".lora_B.weight"},
      kDots,
      {"lora_unet_", ".lora_down.weight", ".lora_up.weight", true},
      {"lora_transformer_", ".lora_down.weight", ".lora_up.weight", true},
      {"lycoris_", ".lora_down.weight", ".lora_up.weight", true}};
  const auto first = run(diffusers, kDots);
  EXPECT_LE(relative_error(first, expected), 2e-5);
  for (const Naming& naming : of_single) {
    EXPECT_EQ(run(single, naming), first) << naming.prefix << naming.down;
  }
  for (const Naming& naming : of_diffusers) {
    EXPECT_EQ(run(diffusers, naming), first) << naming.prefix << naming.down;
  }
}

// Some files have lost the first letters of transformer_blocks.
TEST_F(Flux2Lora, ACutNameIsTheSame) {
  auto modules = split(case_["blocks"]);
  for (Module& m : modules) {
    if (m.name.starts_with("transformer_blocks.")) m.name = m.name.substr(4);
  }
  const Naming naming = {"diffusion_model.", ".lora_A.weight", ".lora_B.weight"};
  EXPECT_LE(relative_error(run(modules, naming), floats(lora_.tensor("blocks"))), 2e-5);
}

// Tools that train q, k and v apart and store them as one write zeros beside each one's part of B.
TEST_F(Flux2Lora, AFusedModuleOfSeparateAdaptersIsTheirSum) {
  const std::string names[] = {"transformer_blocks.1.attn.to_q", "transformer_blocks.1.attn.to_k",
                               "transformer_blocks.1.attn.to_v"};
  const int64_t rank = case_["rank"], dim = config_.dim();
  std::vector<Module> apart;
  Tensor down = Tensor::zeros(DType::kF32, {3 * rank, dim});
  Tensor up = Tensor::zeros(DType::kF32, {3 * dim, 3 * rank});
  for (int64_t i = 0; i < 3; ++i) {
    const Module m = {names[i], test::procedural_uniform(names[i] + ".A", {rank, dim}, 0.3f),
                      test::procedural_uniform(names[i] + ".B", {dim, rank}, 0.3f)};
    std::copy(m.down.as<float>().begin(), m.down.as<float>().end(),
              down.mutable_as<float>().begin() + i * rank * dim);
    for (int64_t r = 0; r < dim; ++r) {
      for (int64_t k = 0; k < rank; ++k) {
        // alpha / rank is a third of what it is apart.
        up.mutable_as<float>()[(i * dim + r) * 3 * rank + i * rank + k] =
            3 * m.up.as<float>()[r * rank + k];
      }
    }
    apart.push_back(m);
  }
  const std::vector<Module> fused = {{"double_blocks.1.img_attn.qkv", down, up}};
  const auto expected = run(apart, kDots);
  EXPECT_LE(relative_error(run(fused, kDots), expected), 2e-5);
  EXPECT_GT(relative_error(floats(lora_.tensor("none")), expected), 0.01);
}

TEST_F(Flux2Lora, OtherKindsAreRefusedByName) {
  auto tensors = tensors_of(original(case_["blocks"]), kDots);
  tensors.emplace_back("double_blocks.0.img_attn.qkv.lokr_w1", Tensor::zeros(DType::kF32, {4, 4}));
  write_safetensors(dir_ / "lokr.safetensors", tensors);
  EXPECT_THAT(
      test::error_of([&] { LoraAdapter::load(dir_ / "lokr.safetensors", targets_); }),
      testing::HasSubstr("tensor 'double_blocks.0.img_attn.qkv.lokr_w1' is part of an adapter of "
                         "another kind: LoKr"));
}

}  // namespace
}  // namespace halftone::flux2
