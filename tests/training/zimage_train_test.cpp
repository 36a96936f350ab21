// A whole training run against PyTorch, diffusers and PEFT: the loss of every step, the first
// gradients and where the parameters end.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/families.h"
#include "halftone/passes/compile.h"
#include "halftone/tensor/float_values.h"
#include "halftone/training/lora_output.h"
#include "halftone/training/parameters.h"
#include "halftone/training/train_graph.h"
#include "tests/support/backend.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

using test::floats;
using test::relative_error;

class ZImageTraining : public testing::TestWithParam<bool> {
 protected:
  ZImageTraining()
      : fixture_(std::filesystem::path(HALFTONE_TEST_DATA) / "zimage" / "train.safetensors"),
        case_(parse_json(fixture_.metadata().at("case"), "fixture")) {
    auto description = test::one_layer_zimage();
    description["transformer"] = case_["config"];
    const std::filesystem::path data = HALFTONE_TEST_DATA;
    test::write_zimage_folder(dir_ / "model", description, data / "tokenizer" / "tokenizer.json");
    denoiser_ = find_model(dir_ / "model").family->denoiser({dir_ / "model", {}});
    for (const int64_t length : case_["captions"]) lengths_.push_back(length);
    latents_ = {16, case_["size"][0].get<int64_t>(), case_["size"][1].get<int64_t>()};
    shape_ = denoiser_->shape(latents_, lengths_);
  }

  // PEFT's name of a weight of an adapter's module.
  static std::string peft_name(const std::string& weight, const char* which) {
    return weight.substr(0, weight.size() - std::string(".weight").size()) + "." + which +
           ".weight";
  }

  // Adapters beside the linears of all blocks, at values that the fixture knows, too.
  void attach(const Graph& graph) {
    const int64_t rank = case_["rank"];
    sites_.rank = rank;
    for (const auto& [name, value] : graph.weights()) {
      const bool block =
          name.find("layers.") != std::string::npos || name.find("refiner.") != std::string::npos;
      const bool linear = name.find(".attention.to_") != std::string::npos ||
                          name.find(".feed_forward.w") != std::string::npos;
      if (!block || !linear) continue;
      sites_.weights.insert(name);
      const std::pair<std::string, std::string> down{lora_down_name(name),
                                                     peft_name(name, "lora_A")};
      const std::pair<std::string, std::string> up{lora_up_name(name), peft_name(name, "lora_B")};
      peft_.insert({down, up});
      initial_.emplace(
          down.first, test::procedural_uniform("train." + down.second, {rank, value.dim(1)}, 0.2f));
      initial_.emplace(up.first,
                       test::procedural_uniform("train." + up.second, {value.dim(0), rank}, 0.02f));
    }
  }

  // Loss and gradients of the graph, with its adapters where there are any.
  Program program_for(const Graph& plain, const Parameters& parameters) const {
    std::vector<std::string> trained;
    for (const auto& [name, tensor] : initial_) trained.push_back(name);
    const Stream stream = test::tested_stream();
    CompileOptions how;
    if (!sites_.weights.empty()) how.lora = {sites_};
    how.extend = [&](Graph& graph) { add_loss(graph, trained); };
    how.optimize = GetParam();
    how.can_stack = [](const std::string&, const std::string&) { return false; };
    Weights weights = test::procedural_weights(plain);
    if (stream.device != nullptr) weights = to_device(weights, {}, *stream.device);
    for (const auto& [name, weight] : parameters.weights()) weights[name] = weight;
    return {compile(plain, how, test::tested_kernels(), stream).graph, weights,
            test::tested_kernels(), stream};
  }

  std::map<std::string, Tensor> inputs_of(int step) const {
    const auto rows = static_cast<int64_t>(lengths_.size());
    const Shape shape{rows, latents_[0], latents_[1], latents_[2]};
    const float unit = std::sqrt(3.0f);
    const Tensor x = test::procedural_uniform(fmt::format("train.x.{}", step % 4), shape, unit);
    const Tensor noise = test::procedural_uniform(fmt::format("train.noise.{}", step), shape, unit);
    const Tensor u = test::procedural_uniform(fmt::format("train.sigma.{}", step), {rows}, 1.0f);
    std::vector<Condition> conditions;
    std::vector<const Condition*> pointers;
    for (size_t i = 0; i < lengths_.size(); ++i) {
      conditions.push_back(
          {{"text", test::procedural_uniform(fmt::format("train.caption.{}.{}", step % 4, i),
                                             {lengths_[i], denoiser_->text_features()}, unit)}});
    }
    for (const Condition& condition : conditions) pointers.push_back(&condition);
    auto inputs = denoiser_->inputs(shape_, pointers);
    Tensor noisy = Tensor::empty(DType::kF32, shape), target = Tensor::empty(DType::kF32, shape);
    Tensor time = Tensor::empty(DType::kF32, {rows});
    const int64_t per_row = shape.numel() / rows;
    for (int64_t r = 0; r < rows; ++r) {
      SamplerStep at;
      at.sigma = u.as<float>()[r] * 0.45f + 0.5f;
      time.mutable_as<float>()[r] = denoiser_->time(at);
      for (int64_t i = r * per_row; i < (r + 1) * per_row; ++i) {
        const float clean = x.as<float>()[i], n = noise.as<float>()[i];
        const auto sigma = static_cast<float>(at.sigma);
        noisy.mutable_as<float>()[i] = (1 - sigma) * clean + sigma * n;
        target.mutable_as<float>()[i] = n - clean;
      }
    }
    Tensor ones = Tensor::empty(DType::kF32, {rows});
    Tensor strength = Tensor::empty(DType::kF32, {rows, sites_.rank});
    std::ranges::fill(ones.mutable_as<float>(), 1.0f);
    std::ranges::fill(strength.mutable_as<float>(),
                      case_.value("alpha", 1.0f) / static_cast<float>(sites_.rank));
    inputs["latents"] = noisy;
    inputs["time"] = time;
    inputs["target"] = target;
    inputs["loss_weight"] = ones;
    if (!sites_.weights.empty()) inputs[lora_strength_name(0)] = strength;
    return inputs;
  }

  AdamWArgs optimizer() const {
    const auto& adamw = case_["adamw"];
    AdamWArgs rule;
    rule.learning_rate = adamw["lr"];
    rule.beta1 = adamw["betas"][0];
    rule.beta2 = adamw["betas"][1];
    rule.eps = adamw["eps"];
    rule.weight_decay = adamw["weight_decay"];
    return rule;
  }

  std::vector<float> expected(const std::string& name) const {
    return floats(fixture_.tensor(name));
  }
  int expect_near(const std::map<std::string, Tensor>& got, const char* kind,
                  double tolerance) const {
    int compared = 0;
    for (const auto& [name, tensor] : got) {
      const std::string stored = fmt::format("{}.{}", kind, peft_.at(name));
      if (fixture_.find(stored) == nullptr) continue;
      EXPECT_LE(relative_error(floats(tensor), expected(stored)), tolerance) << stored;
      ++compared;
    }
    return compared;
  }

  const test::TempDir dir_;
  SafetensorsFile fixture_;
  nlohmann::json case_;
  std::unique_ptr<Denoiser> denoiser_;
  std::vector<int64_t> lengths_;
  Shape latents_;
  DenoiserShape shape_;
  LoraSites sites_;
  std::map<std::string, std::string> peft_;  // our names -> PEFT's
  std::map<std::string, Tensor> initial_;
};
INSTANTIATE_TEST_SUITE_P(, ZImageTraining, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "compiled" : "plain"; });

TEST_P(ZImageTraining, FollowsPyTorchStepByStep) {
  const auto plain = denoiser_->build(shape_, {});
  attach(*plain);
  EXPECT_EQ(initial_.size(), 56u);
  Parameters parameters(initial_, {}, test::tested_kernels(), test::tested_stream());
  Program program = program_for(*plain, parameters);
  AdamWArgs rule = optimizer();
  const auto losses = expected("losses");
  for (size_t step = 0; step < losses.size(); ++step) {
    const float loss = program.run(inputs_of(static_cast<int>(step))).at("loss").as<float>()[0];
    EXPECT_NEAR(loss, losses[step], 1e-4 * losses[step]) << "step " << step;
    parameters.take_gradients(program, /*add=*/false);
    if (step == 0) {
      EXPECT_GE(expect_near(parameters.gradients(), "grad", 1e-4), 8);
    }
    rule.step = static_cast<int64_t>(step) + 1;
    parameters.step(rule);
  }
  EXPECT_LT(losses.back(), 0.95 * losses.front());
  EXPECT_GE(expect_near(parameters.values(), "final", 2e-3), 8);
}

// All weights of the model, without adapters.
TEST_P(ZImageTraining, WholeModelsFollowPyTorch) {
  const SafetensorsFile full(std::filesystem::path(HALFTONE_TEST_DATA) / "zimage" /
                             "train_full.safetensors");
  case_ = parse_json(full.metadata().at("case"), "fixture");
  const auto plain = denoiser_->build(shape_, {});
  for (const auto& [name, weight] : test::procedural_weights(*plain)) {
    initial_.emplace(name, as_f32(std::get<Tensor>(weight)));
  }
  Parameters parameters(initial_, {}, test::tested_kernels(), test::tested_stream());
  Program program = program_for(*plain, parameters);
  AdamWArgs rule = optimizer();
  const auto losses = floats(full.tensor("losses"));
  int compared = 0;
  for (size_t step = 0; step < losses.size(); ++step) {
    const float loss = program.run(inputs_of(static_cast<int>(step))).at("loss").as<float>()[0];
    EXPECT_NEAR(loss, losses[step], 1e-4 * losses[step]) << "step " << step;
    parameters.take_gradients(program, /*add=*/false);
    const auto gradients = parameters.gradients();
    for (const auto& [name, gradient] : gradients) {
      if (step > 0 || full.find("grad." + name) == nullptr) continue;
      EXPECT_LE(relative_error(floats(gradient), floats(full.tensor("grad." + name))), 1e-4)
          << name;
      ++compared;
    }
    rule.step = static_cast<int64_t>(step) + 1;
    parameters.step(rule);
  }
  EXPECT_LT(losses.back(), 0.8 * losses.front());
  EXPECT_EQ(compared, static_cast<int>(full.tensors().size()) - 1);
}

// Two halves of a batch, added and scaled, are the batch.
TEST_P(ZImageTraining, GradientsAddUp) {
  const auto plain = denoiser_->build(shape_, {});
  attach(*plain);
  Parameters parameters(initial_, {}, test::tested_kernels(), test::tested_stream());
  Program program = program_for(*plain, parameters);
  auto inputs = inputs_of(0);
  program.run(inputs);
  parameters.take_gradients(program, false);
  const auto whole = parameters.gradients();
  for (const int64_t row : {0, 1}) {
    Tensor mask = Tensor::zeros(DType::kF32, {2});
    mask.mutable_as<float>()[row] = 1;
    inputs["loss_weight"] = mask;
    program.run(inputs);
    parameters.take_gradients(program, row == 1);
  }
  for (const auto& [name, tensor] : parameters.gradients()) {
    EXPECT_LE(relative_error(floats(tensor), floats(whole.at(name))), 1e-5) << name;
  }
}

// What is written is read again as any adapter is, with its strength in B.
TEST_P(ZImageTraining, AdaptersAreWrittenForOthers) {
  const auto plain = denoiser_->build(shape_, {});
  attach(*plain);
  TrainedLora lora;
  lora.strength = 1.5f;
  for (const std::string& weight : sites_.weights) {
    lora.modules[weight] = {initial_.at(lora_down_name(weight)), initial_.at(lora_up_name(weight))};
  }
  const LoraNaming naming = GetParam() ? LoraNaming::kComfyUi : LoraNaming::kDiffusers;
  const std::filesystem::path file = dir_ / "trained.safetensors";
  write_lora(file, lora, naming, DType::kF32, {{"halftone.base", "a model"}});
  const SafetensorsFile written(file);
  EXPECT_EQ(written.metadata().at("halftone.base"), "a model");
  EXPECT_NE(written.find("transformer.layers.0.attention.to_q.lora_A.weight"), nullptr);
  const LoraAdapter read = LoraAdapter::load(file, denoiser_->lora_targets(*plain));
  EXPECT_EQ(read.report().matched, 28);
  EXPECT_TRUE(read.report().unmatched.empty());
  for (const auto& [weight, module] : read.modules()) {
    EXPECT_EQ(floats(module.down), floats(lora.modules.at(weight).down)) << weight;
    auto up = floats(lora.modules.at(weight).up);
    for (float& v : up) v *= 1.5f;
    EXPECT_EQ(floats(module.up), up) << weight;
  }
}

}  // namespace
}  // namespace halftone
