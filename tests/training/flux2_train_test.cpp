// A whole training run of a FLUX.2 transformer against PyTorch, diffusers and PEFT: the loss of
// every step, and the first gradients of everything that is trained.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "halftone/models/lora.h"
#include "halftone/passes/compile.h"
#include "halftone/training/parameters.h"
#include "halftone/training/train_graph.h"
#include "tests/support/backend.h"
#include "tests/support/flux2_case.h"

namespace halftone {
namespace {

using test::floats;
using test::relative_error;

class Flux2Training : public testing::TestWithParam<bool> {
 protected:
  void open(const char* name) {
    fixture_.emplace(test::flux2_data(name));
    case_ = parse_json(fixture_->metadata().at("case"), "fixture");
    config_ = flux2::parse_transformer_config(case_["config"], "fixture");
    latents_ = {case_["rows"], config_.in_channels, case_["size"][0].get<int64_t>(),
                case_["size"][1].get<int64_t>()};
    plain_ = flux2::build_transformer(
        config_, flux2::shape_for(Tensor::zeros(DType::kF32, latents_), texts(0)), {});
  }

  std::vector<Tensor> texts(int step) const {
    std::vector<Tensor> all;
    for (int64_t row = 0; row < latents_[0]; ++row) {
      all.push_back(test::procedural_uniform(fmt::format("train.{}.text.{}", step % 4, row),
                                             {case_["text"].get<int64_t>(), config_.joint_dim},
                                             std::sqrt(3.0f)));
    }
    return all;
  }

  // Beside the linears of all blocks, at values that the fixture knows, too.
  void attach() {
    sites_.rank = case_["rank"];
    for (const auto& [name, value] : plain_->weights()) {
      if (name.find("transformer_blocks.") == std::string::npos || value.rank() != 2) continue;
      sites_.weights.insert(name);
      const std::string module = name.substr(0, name.size() - std::string(".weight").size());
      const std::pair<std::string, std::string> down{lora_down_name(name),
                                                     module + ".lora_A.weight"};
      const std::pair<std::string, std::string> up{lora_up_name(name), module + ".lora_B.weight"};
      names_.insert({down, up});
      initial_.emplace(down.first, test::procedural_uniform("train." + down.second,
                                                            {sites_.rank, value.dim(1)}, 0.2f));
      initial_.emplace(up.first, test::procedural_uniform("train." + up.second,
                                                          {value.dim(0), sites_.rank}, 0.02f));
    }
  }

  Program program_for(const Parameters& parameters) const {
    std::vector<std::string> trained;
    for (const auto& [name, tensor] : initial_) trained.push_back(name);
    const Stream stream = test::tested_stream();
    CompileOptions how;
    if (!sites_.weights.empty()) how.lora = {sites_};
    how.extend = [&](Graph& graph) { add_loss(graph, trained); };
    how.optimize = GetParam();
    how.can_stack = [](const std::string&, const std::string&) { return false; };
    Weights weights = test::procedural_weights(*plain_);
    if (stream.device != nullptr) weights = to_device(weights, {}, *stream.device);
    for (const auto& [name, weight] : parameters.weights()) weights[name] = weight;
    return {compile(*plain_, how, test::tested_kernels(), stream).graph, weights,
            test::tested_kernels(), stream};
  }

  std::map<std::string, Tensor> inputs_of(int step) const {
    const int64_t rows = latents_[0], per_row = latents_.numel() / rows;
    const float unit = std::sqrt(3.0f);
    const Tensor x =
        test::procedural_uniform(fmt::format("train.{}.latents", step % 4), latents_, unit);
    const Tensor noise =
        test::procedural_uniform(fmt::format("train.noise.{}", step), latents_, unit);
    const Tensor u = test::procedural_uniform(fmt::format("train.sigma.{}", step), {rows});
    Tensor noisy = Tensor::empty(DType::kF32, latents_);
    Tensor target = Tensor::empty(DType::kF32, latents_);
    std::vector<float> sigmas;
    for (int64_t r = 0; r < rows; ++r) {
      const float sigma = u.as<float>()[r] * 0.45f + 0.5f;
      sigmas.push_back(sigma);
      for (int64_t i = r * per_row; i < (r + 1) * per_row; ++i) {
        const float clean = x.as<float>()[i], n = noise.as<float>()[i];
        noisy.mutable_as<float>()[i] = (1 - sigma) * clean + sigma * n;
        target.mutable_as<float>()[i] = n - clean;
      }
    }
    auto inputs = flux2::transformer_inputs(config_, noisy, sigmas, texts(step));
    inputs["target"] = target;
    Tensor ones = Tensor::empty(DType::kF32, {rows});
    std::ranges::fill(ones.mutable_as<float>(), 1.0f);
    inputs["loss_weight"] = ones;
    if (sites_.weights.empty()) return inputs;
    Tensor strength = Tensor::empty(DType::kF32, {rows, sites_.rank});
    std::ranges::fill(strength.mutable_as<float>(),
                      case_["alpha"].get<float>() / static_cast<float>(sites_.rank));
    inputs[lora_strength_name(0)] = strength;
    return inputs;
  }

  // A gradient as the fixture has it: small ones whole, large ones multiplied by a vector on either
  // side. How many values were compared.
  int expect_gradient(const std::string& name, const Tensor& gradient) const {
    const auto g = floats(gradient);
    if (const std::string whole = "grad." + name; fixture_->find(whole) != nullptr) {
      EXPECT_LE(relative_error(g, floats(fixture_->tensor(whole))), 1e-4) << name;
      return 1;
    }
    const int64_t rows = gradient.shape()[0], cols = gradient.shape()[1];
    const auto left = floats(test::procedural_uniform(fmt::format("left.{}", rows), {rows}));
    const auto right = floats(test::procedural_uniform(fmt::format("right.{}", cols), {cols}));
    std::vector<float> along(cols), across(rows);
    for (int64_t c = 0; c < cols; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += double{left[r]} * g[r * cols + c];
      along[c] = static_cast<float>(sum);
    }
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < cols; ++c) sum += double{right[c]} * g[r * cols + c];
      across[r] = static_cast<float>(sum);
    }
    EXPECT_LE(relative_error(along, floats(fixture_->tensor("grad_left." + name))), 1e-4) << name;
    EXPECT_LE(relative_error(across, floats(fixture_->tensor("grad_right." + name))), 1e-4) << name;
    return 2;
  }

  // All steps of the fixture, with everything that it holds.
  void follow() {
    Parameters parameters(initial_, {}, test::tested_kernels(), test::tested_stream());
    Program program = program_for(parameters);
    const auto& adamw = case_["adamw"];
    AdamWArgs rule;
    rule.learning_rate = adamw["lr"];
    rule.beta1 = adamw["betas"][0];
    rule.beta2 = adamw["betas"][1];
    rule.eps = adamw["eps"];
    rule.weight_decay = adamw["weight_decay"];
    const auto losses = floats(fixture_->tensor("losses"));
    int compared = 0;
    for (size_t step = 0; step < losses.size(); ++step) {
      const float loss = program.run(inputs_of(static_cast<int>(step))).at("loss").as<float>()[0];
      EXPECT_NEAR(loss, losses[step], 1e-4 * losses[step]) << "step " << step;
      parameters.take_gradients(program, /*add=*/false);
      if (step == 0) {
        for (const auto& [name, gradient] : parameters.gradients()) {
          const auto other = names_.find(name);
          compared += expect_gradient(other != names_.end() ? other->second : name, gradient);
        }
      }
      rule.step = static_cast<int64_t>(step) + 1;
      parameters.step(rule);
    }
    const auto of_four = [&](auto first) { return std::accumulate(first, first + 4, 0.0); };
    EXPECT_LT(of_four(losses.end() - 4), 0.95 * of_four(losses.begin())) << "it learns nothing";
    EXPECT_EQ(compared, static_cast<int>(fixture_->tensors().size()) - 1);
  }

  std::optional<SafetensorsFile> fixture_;
  nlohmann::json case_;
  flux2::TransformerConfig config_;
  Shape latents_;
  std::shared_ptr<Graph> plain_;
  LoraSites sites_;
  std::map<std::string, std::string> names_;  // of adapters -> PEFT's
  std::map<std::string, Tensor> initial_;
};
INSTANTIATE_TEST_SUITE_P(, Flux2Training, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "compiled" : "plain"; });

TEST_P(Flux2Training, AdaptersFollowPyTorch) {
  open("train");
  attach();
  EXPECT_EQ(sites_.weights.size(), 28u);
  follow();
}

TEST_P(Flux2Training, WholeModelsFollowPyTorch) {
  open("train_full");
  for (const auto& [name, weight] : test::procedural_weights(*plain_)) {
    initial_.emplace(name, std::get<Tensor>(weight));
  }
  EXPECT_EQ(initial_.size(), 49u);
  follow();
}

}  // namespace
}  // namespace halftone
