// Text encoders trained together with SDXL's U-Net: against PyTorch, diffusers and PEFT, and as a
// whole run.
#include "halftone/training/text_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/training/train_programs.h"
#include "halftone/training/trainer.h"
#include "tests/support/data.h"
#include "tests/support/errors.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tested_options.h"
#include "tests/support/tiny_folder.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

using test::error_of;
using test::floats;
using test::relative_error;

class TextTraining : public testing::Test {
 protected:
  TextTraining()
      : fixture_(test::kData / "sdxl" / "train_text.safetensors"),
        case_(parse_json(fixture_.metadata().at("case"), "fixture")) {
    test::write_tiny_folder(dir_ / "model", case_);
    rules_.rank = case_["rank"];
    rules_.alpha = case_["alpha"];
    rules_.train_text = true;
    rules_.clip = 0;
  }
  std::shared_ptr<const Model> load(bool compiled = true) const {
    LoadOptions options = test::tested_options();
    options.compile = compiled;
    return test::load_pipeline(dir_ / "model", options)->shared_model();
  }
  // "unet.mid_block.X.lora_A.weight", as the fixture names what is trained, by its weight.
  std::string golden_name(const std::string& weight, const char* half) const {
    std::string name = weight.substr(0, weight.size() - std::string(".weight").size());
    const size_t slash = name.find('/');
    if (slash == name.npos) return "unet." + name + half;
    constexpr std::string_view kInner = "text_model.";
    std::string path = name.substr(slash + 1);
    if (path.starts_with(kInner)) path.erase(0, kInner.size());
    return name.substr(0, slash) + "." + path + half;
  }
  std::vector<TrainExample> examples(const Model& model) const {
    std::vector<TrainExample> all;
    for (const auto& caption : case_["captions"].get<std::vector<std::string>>()) {
      all.push_back({test::procedural_uniform(caption, {4, 8, 8}),
                     caption_ids(model.conditioner(), caption), 1});
    }
    return all;
  }

  test::TempDir dir_;
  SafetensorsFile fixture_;
  nlohmann::json case_;
  TrainRules rules_;
};

TEST_F(TextTraining, FollowsPyTorch) {
  for (const bool compiled : {false, true}) {
    const auto model = load(compiled);
    std::vector<LinearInfo> linears = adapter_sites(*model, rules_);
    const size_t of_unet = linears.size();
    const std::vector<LinearInfo> text = text_sites(*model, rules_);
    linears.insert(linears.end(), text.begin(), text.end());
    LoraSites sites;
    sites.rank = rules_.rank;
    std::map<std::string, Tensor> initial;
    std::map<std::string, std::string> golden;
    for (const LinearInfo& linear : linears) {
      sites.weights.insert(linear.weight);
      const std::string down = golden_name(linear.weight, ".lora_A.weight");
      const std::string up = golden_name(linear.weight, ".lora_B.weight");
      golden[lora_down_name(linear.weight)] = "grad." + down;
      golden[lora_up_name(linear.weight)] = "grad." + up;
      initial[lora_down_name(linear.weight)] =
          test::procedural_uniform("train." + down, {rules_.rank, linear.shape[1]}, 0.3f);
      initial[lora_up_name(linear.weight)] =
          test::procedural_uniform("train." + up, {linear.shape[0], rules_.rank}, 0.1f);
    }
    EXPECT_GT(of_unet, 40u);
    EXPECT_GT(text.size(), 20u);
    Parameters parameters(initial, {}, test::tested_kernels(), test::tested_stream());
    TrainPrograms programs(model, rules_, sites, parameters, {});
    const int64_t tokens[] = {77, 77};
    TrainPrograms::Entry& entry = programs.get(TrainPass::kGradients, {4, 8, 8}, tokens);
    std::vector<Condition> told;
    for (size_t i = 0; i < 2; ++i) {
      told.push_back(caption_ids(model->conditioner(), case_["captions"][i]));
      told[i][kSizesOfCondition] =
          test::f32_tensor({6}, case_["sizes"][i].get<std::vector<float>>());
    }
    const Condition* const rows[] = {&told[0], &told[1]};
    NamedTensors inputs = model->denoiser().inputs(entry.shape, rows);
    give_captions(*model, rows, inputs);
    const float target = case_["target"];
    inputs["latents"] = test::procedural_uniform("train.latents", {2, 4, 8, 8}, std::sqrt(3.0f));
    inputs["time"] = test::f32_tensor({2}, case_["times"].get<std::vector<float>>());
    inputs["loss_weight"] = test::f32_tensor({2}, {1, 1});
    inputs["noising"] = test::f32_tensor({2, 4}, {1, 0, target, 0, 1, 0, target, 0});
    inputs["noise_keys"] = test::int_tensor({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
    Tensor strength = Tensor::empty(DType::kF32, {2, rules_.rank});
    std::ranges::fill(strength.mutable_as<float>(), rules_.alpha / static_cast<float>(rules_.rank));
    inputs[lora_strength_name(0)] = strength;
    for (const auto& [name, tensor] : inputs) entry.program->set_input(name, tensor);

    AdamWArgs rule;
    const auto& adamw = case_["adamw"];
    rule.learning_rate = adamw["lr"];
    rule.beta1 = adamw["betas"][0];
    rule.beta2 = adamw["betas"][1];
    rule.eps = adamw["eps"];
    rule.weight_decay = adamw["weight_decay"];
    const auto losses = floats(fixture_.tensor("losses"));
    for (size_t step = 0; step < losses.size(); ++step) {
      entry.program->run();
      EXPECT_NEAR(entry.program->output("loss").as<float>()[0], losses[step], 1e-4 * losses[step]);
      parameters.take_gradients(*entry.program, /*add=*/false);
      if (step == 0) {
        size_t compared = 0;
        for (const auto& [name, gradient] : parameters.gradients()) {
          EXPECT_LE(relative_error(floats(gradient), floats(fixture_.tensor(golden.at(name)))),
                    1e-4)
              << name;
          ++compared;
        }
        // The first encoder's last layer does not run: six linears with two factors each.
        EXPECT_EQ(compared + 12 + 1, fixture_.tensors().size());
      }
      rule.step = static_cast<int64_t>(step) + 1;
      parameters.step(rule);
    }
    EXPECT_LT(losses.back(), 0.9 * losses.front()) << "it learns nothing";
  }
}

TEST_F(TextTraining, ARunLearnsAndItsAdapterChangesPrompts) {
  const auto model = load();
  rules_.steps = 6;
  rules_.batch = 2;
  rules_.optimizer.learning_rate = 1e-2f;
  rules_.caption_dropout = 0.2;
  const auto run = [&](int64_t until, const Trainer::State* from) {
    auto trainer = std::make_unique<Trainer>(model, examples(*model), rules_,
                                             caption_ids(model->conditioner(), ""));
    EXPECT_GT(trainer->plan().peak(), 0);
    if (from != nullptr) trainer->restore(*from);
    while (trainer->state().step < until) trainer->step();
    return trainer;
  };
  const auto whole = run(6, nullptr);
  const auto half = run(3, nullptr);
  const Trainer::State state = half->state();
  const auto resumed = run(6, &state);
  const TrainedLora lora = whole->adapters(), other = resumed->adapters();
  ASSERT_EQ(lora.encoders.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(lora.encoders[i].modules.empty());
    for (const auto& [weight, module] : lora.encoders[i].modules) {
      EXPECT_EQ(floats(module.up), floats(other.encoders[i].modules.at(weight).up)) << weight;
      EXPECT_THAT(floats(module.up), testing::Contains(testing::Ne(0.0f))) << weight;
    }
  }
  Pipeline pipeline(model);
  const auto plain = floats(pipeline.encode("a red apple").at("text"));
  std::set<std::vector<float>> different;
  for (const LoraNaming naming :
       {LoraNaming::kDiffusers, LoraNaming::kComfyUi, LoraNaming::kKohya}) {
    const std::string file = dir_ / "lora.safetensors";
    write_lora(file, lora, naming, DType::kF32, {});
    const auto adapter = model->load_adapter(file);
    EXPECT_THAT(adapter->lora().report().unmatched, testing::IsEmpty());
    EXPECT_EQ(adapter->lora().modules(size_t{1}).size(), lora.encoders[1].modules.size());
    const auto text = floats(pipeline.encode("a red apple", {{adapter, 1.0f}}).at("text"));
    EXPECT_GT(relative_error(text, plain), 1e-4);
    different.insert(text);
  }
  EXPECT_EQ(different.size(), 1u);
  const SafetensorsFile kohya(dir_ / "lora.safetensors");
  EXPECT_NE(kohya.find("lora_te2_text_model_encoder_layers_0_mlp_fc1.lora_down.weight"), nullptr);
}

TEST_F(TextTraining, IsRefusedWhereEncodersCannotBe) {
  const auto model = load();
  rules_.mode = TrainMode::kFull;
  EXPECT_EQ(error_of([&] { Trainer(model, examples(*model), rules_); }),
            "train-text: is for mode lora");
  rules_.mode = TrainMode::kLora;
  const auto& models = test::tiny_models();
  const auto other =
      std::ranges::find_if(models, [](const auto& tiny) { return tiny.family == "sd3"; });
  other->write(dir_ / "other");
  const auto pipeline = test::load_pipeline(dir_ / "other", test::tested_options());
  EXPECT_EQ(error_of([&] { check_trains_text(pipeline->model()); }),
            "train-text: the text encoders of Stable Diffusion 3 are not trained");
}

}  // namespace
}  // namespace halftone
