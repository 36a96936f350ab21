// Whole training runs of tiny denoisers against PyTorch, diffusers and PEFT: the loss of every
// step, and the first gradients of everything that is trained. A family is a row of kTrained;
// fixtures are made by tools/golden/denoiser_train.py and flux2_train.py.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/flux1/family.h"
#include "halftone/models/flux2/family.h"
#include "halftone/models/lora.h"
#include "halftone/models/sd3/family.h"
#include "halftone/models/sdxl/family.h"
#include "halftone/passes/compile.h"
#include "halftone/training/parameters.h"
#include "halftone/training/train_graph.h"
#include "tests/support/backend.h"
#include "tests/support/data.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/tiny_denoiser.h"

namespace halftone {
namespace {

using test::floats;
using test::relative_error;

struct Trained {
  const char* family;  // and folder of fixtures
  Family (*row)();
  size_t adapted, weights;  // linears of blocks, and all that a whole model has
  bool compiled;
};
std::ostream& operator<<(std::ostream& out, const Trained& t) {
  return out << t.family << (t.compiled ? "_compiled" : "_plain");
}
const Trained kTrained[] = {
    {"flux1", flux1::family, 40, 112, false}, {"flux1", flux1::family, 40, 112, true},
    {"flux2", flux2::family, 28, 49, false},  {"flux2", flux2::family, 28, 49, true},
    {"sd3", sd3::family, 43, 116, false},     {"sd3", sd3::family, 43, 116, true},
    {"sdxl", sdxl::family, 80, 292, false},   {"sdxl", sdxl::family, 80, 292, true},
};

class DenoiserTraining : public testing::TestWithParam<Trained> {
 protected:
  void open(const char* name) {
    fixture_.emplace(test::kData / GetParam().family / (std::string(name) + ".safetensors"));
    case_ = parse_json(fixture_->metadata().at("case"), "fixture");
    denoiser_ = test::tiny_denoiser(GetParam().row(), case_["config"]);
    latents_ = {case_["rows"], denoiser_->channels(), case_["size"][0].get<int64_t>(),
                case_["size"][1].get<int64_t>()};
    const std::vector<int64_t> texts(case_["rows"].get<size_t>(), case_["text"].get<int64_t>());
    shape_ = denoiser_->shape({latents_[1], latents_[2], latents_[3]}, texts);
    plain_ = denoiser_->build(shape_, {});
  }

  // While it is trained a network is told of no guidance.
  std::vector<Condition> conditions(int step) const {
    std::vector<Condition> all;
    const float unit = std::sqrt(3.0f);
    for (int64_t row = 0; row < latents_[0]; ++row) {
      const auto name = [&](const std::string& what) {
        return fmt::format("train.{}.{}.{}", step % 4, what, row);
      };
      const Shape text{case_["text"].get<int64_t>(), denoiser_->text_features()};
      Condition condition = {{"text", test::procedural_uniform(name("text"), text, unit)}};
      for (const auto& [vector, width] : denoiser_->vectors()) {
        condition[vector] = test::procedural_uniform(name(vector), {width}, unit);
      }
      condition[kGuidanceOfCondition] = test::f32_tensor({1}, {1.0f});
      if (denoiser_->reads_sizes()) {
        condition[kSizesOfCondition] =
            test::f32_tensor({6}, case_["sizes"][row].get<std::vector<float>>());
      }
      all.push_back(std::move(condition));
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

  Program program_for(const Parameters& parameters, bool compiled) const {
    std::vector<std::string> trained;
    for (const auto& [name, tensor] : initial_) trained.push_back(name);
    const Stream stream = test::tested_stream();
    CompileOptions how;
    if (!sites_.weights.empty()) how.lora = {sites_};
    how.extend = [&](Graph& graph) { add_loss(graph, trained); };
    how.optimize = compiled;
    how.can_stack = [](const std::string&, const std::string&) { return false; };
    Weights weights = test::procedural_weights(*plain_);
    if (stream.device != nullptr) weights = to_device(weights, {}, *stream.device);
    for (const auto& [name, weight] : parameters.weights()) weights[name] = weight;
    return {compile(*plain_, how, test::tested_kernels(), stream).graph, weights,
            test::tested_kernels(), stream};
  }

  // A row's noise: of a flow, or, where the fixture has timesteps, as it says, with min-SNR
  // weights.
  struct Taught {
    SamplerStep at;
    float signal, level, weight;
    bool is_flow;
  };
  std::vector<Taught> taught_at(int step) const {
    std::vector<Taught> rows;
    const int64_t count = latents_[0];
    const Tensor u = test::procedural_uniform(fmt::format("train.sigma.{}", step), {count});
    for (int64_t r = 0; r < count; ++r) {
      Taught row = {{}, 0, 0, 1, true};
      if (fixture_->find("timesteps") == nullptr) {
        row.level = u.as<float>()[r] * 0.45f + 0.5f;
        row.signal = 1 - row.level;
        row.at.sigma = row.level;
        row.at.timestep = 1000 * double{row.level};
      } else {
        const auto at = [&](const char* name) {
          return fixture_->tensor(name).as<float>()[step * count + r];
        };
        row = {{}, at("signal"), at("level"), at("weights"), false};
        row.at.timestep = at("timesteps");
      }
      rows.push_back(row);
    }
    return rows;
  }

  std::map<std::string, Tensor> inputs_of(int step) const {
    const int64_t rows = latents_[0], per_row = latents_.numel() / rows;
    const float unit = std::sqrt(3.0f);
    const Tensor x =
        test::procedural_uniform(fmt::format("train.{}.latents", step % 4), latents_, unit);
    const Tensor noise =
        test::procedural_uniform(fmt::format("train.noise.{}", step), latents_, unit);
    const std::vector<Taught> taught = taught_at(step);
    Tensor noisy = Tensor::empty(DType::kF32, latents_);
    Tensor target = Tensor::empty(DType::kF32, latents_);
    Tensor time = Tensor::empty(DType::kF32, {rows});
    Tensor weights = Tensor::empty(DType::kF32, {rows});
    for (int64_t r = 0; r < rows; ++r) {
      const Taught& row = taught[static_cast<size_t>(r)];
      time.mutable_as<float>()[r] = denoiser_->time(row.at);
      weights.mutable_as<float>()[r] = row.weight;
      for (int64_t i = r * per_row; i < (r + 1) * per_row; ++i) {
        const float clean = x.as<float>()[i], n = noise.as<float>()[i];
        noisy.mutable_as<float>()[i] = row.signal * clean + row.level * n;
        target.mutable_as<float>()[i] = row.is_flow ? n - clean : n;
      }
    }
    const auto told = conditions(step);
    std::vector<const Condition*> all;
    for (const Condition& condition : told) all.push_back(&condition);
    auto inputs = denoiser_->inputs(shape_, all);
    inputs["latents"] = noisy;
    inputs["time"] = time;
    inputs["target"] = target;
    inputs["loss_weight"] = weights;
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
    // Kernels of convolutions as matrices.
    const int64_t rows = gradient.shape()[0], cols = gradient.numel() / rows;
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

  AdamWArgs rule_of_fixture() const {
    const auto& adamw = case_["adamw"];
    AdamWArgs rule;
    rule.learning_rate = adamw["lr"];
    rule.beta1 = adamw["betas"][0];
    rule.beta2 = adamw["betas"][1];
    rule.eps = adamw["eps"];
    rule.weight_decay = adamw["weight_decay"];
    return rule;
  }

  std::vector<float> losses_of(bool compiled) {
    Parameters parameters(initial_, {}, test::tested_kernels(), test::tested_stream());
    Program program = program_for(parameters, compiled);
    AdamWArgs rule = rule_of_fixture();
    std::vector<float> losses;
    for (int step = 0; step < 20; ++step) {
      losses.push_back(program.run(inputs_of(step)).at("loss").as<float>()[0]);
      parameters.take_gradients(program, /*add=*/false);
      rule.step = step + 1;
      parameters.step(rule);
    }
    return losses;
  }

  // All steps of the fixture, with everything that it holds.
  void follow() {
    Parameters parameters(initial_, {}, test::tested_kernels(), test::tested_stream());
    Program program = program_for(parameters, GetParam().compiled);
    AdamWArgs rule = rule_of_fixture();
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
    const auto is_gradient = [](const TensorEntry& entry) {
      return entry.name.starts_with("grad");
    };
    EXPECT_EQ(compared, std::ranges::count_if(fixture_->tensors(), is_gradient));
  }

  std::optional<SafetensorsFile> fixture_;
  nlohmann::json case_;
  std::unique_ptr<Denoiser> denoiser_;
  Shape latents_;
  DenoiserShape shape_;
  std::shared_ptr<Graph> plain_;
  LoraSites sites_;
  std::map<std::string, std::string> names_;  // of adapters -> PEFT's
  std::map<std::string, Tensor> initial_;
};
INSTANTIATE_TEST_SUITE_P(, DenoiserTraining, testing::ValuesIn(kTrained),
                         testing::PrintToStringParamName());

TEST_P(DenoiserTraining, AdaptersFollowPyTorch) {
  open("train");
  attach();
  EXPECT_EQ(sites_.weights.size(), GetParam().adapted);
  follow();
}

// Fused, and node by node.
TEST_P(DenoiserTraining, CompilingChangesNoLoss) {
  if (!GetParam().compiled) GTEST_SKIP() << "compares both";
  open("train");
  attach();
  const auto plain = losses_of(false), compiled = losses_of(true);
  for (size_t step = 0; step < plain.size(); ++step) {
    EXPECT_NEAR(compiled[step], plain[step], 1e-5 * plain[step]) << "step " << step;
  }
}

TEST_P(DenoiserTraining, WholeModelsFollowPyTorch) {
  open("train_full");
  for (const auto& [name, weight] : test::procedural_weights(*plain_)) {
    if (!denoiser_->trains(name)) continue;
    initial_.emplace(name, std::get<Tensor>(weight));
  }
  EXPECT_EQ(initial_.size(), GetParam().weights);
  follow();
}

}  // namespace
}  // namespace halftone
