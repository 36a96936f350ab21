// Training an adapter or the weights, for every family: it learns, it can be repeated, and what it
// writes changes pictures.
#include "halftone/training/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "halftone/io/safetensors_file.h"
#include "halftone/training/weights_output.h"
#include "tests/support/errors.h"
#include "tests/support/fake_device.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/run_graph.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tested_options.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

using test::error_of;
using test::floats;
using test::relative_error;
using testing::HasSubstr;

class ModelTraining : public testing::TestWithParam<test::TinyModel> {
 protected:
  ModelTraining() {
    GetParam().write(dir_ / "model");
    rules_.steps = test::kSanitized ? 4 : 24;  // whether it learns is seen without sanitizers
    rules_.batch = 2;
    rules_.rank = 4;
    rules_.alpha = 8;
    rules_.optimizer.learning_rate = 1e-2f;
    rules_.clip = 0;
    rules_.seed = 5;
  }

  std::unique_ptr<Pipeline> load(const LoadOptions& options = test::tested_options()) const {
    return test::load_pipeline(dir_ / "model", options);
  }
  // Of two sizes, one wide and one high, with prompts of several lengths.
  std::vector<TrainExample> examples(Pipeline& pipeline) const {
    std::vector<TrainExample> all;
    const char* prompts[] = {"a cat", "two dogs on a hill in winter", "", "a red apple"};
    for (uint64_t i = 0; i < 4; ++i) {
      const int64_t more = pipeline.model().codec().scale() * pipeline.model().denoiser().patch();
      const Shape shape =
          i % 2 == 0 ? pipeline.model().latent_shape(GetParam().width + more, GetParam().height)
                     : pipeline.model().latent_shape(GetParam().width, GetParam().height + more);
      Tensor latents = test::random_tensor({shape[1], shape[2], shape[3]}, 60 + i);
      all.push_back({latents, pipeline.encode(prompts[i])});
    }
    return all;
  }
  std::vector<double> losses(Trainer& trainer) const {
    std::vector<double> all;
    while (!trainer.done()) all.push_back(trainer.step().loss);
    return all;
  }

  const test::TempDir dir_;
  TrainRules rules_;
};
INSTANTIATE_TEST_SUITE_P(, ModelTraining, testing::ValuesIn(test::tiny_models()),
                         [](const auto& tested) {
                           std::string name = tested.param.family;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

double mean_of(const std::vector<double>& values, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += values[i];
  return sum / static_cast<double>(end - begin);
}

TEST_P(ModelTraining, LearnsAndIsRepeated) {
  const auto pipeline = load();
  const auto data = examples(*pipeline);
  Trainer trainer(pipeline->shared_model(), data, rules_);
  const auto first = losses(trainer);
  if (!test::kSanitized) {
    EXPECT_LT(mean_of(first, 16, 24), 0.97 * mean_of(first, 0, 8));
  }
  EXPECT_THAT(trainer.notes(), testing::IsEmpty());  // no reference stands in for a fast kernel
  Trainer again(pipeline->shared_model(), data, rules_);
  EXPECT_EQ(losses(again), first);
  rules_.seed = 6;
  Trainer other(pipeline->shared_model(), data, rules_);
  EXPECT_NE(other.step().loss, first[0]);
}

// Blocks of the base that are streamed to a device, backwards in the reverse order, change nothing.
TEST_P(ModelTraining, BesideABaseWhoseBlocksAreStreamed) {
  rules_.steps = 3;
  for (const bool quantized : {false, true}) {
    std::vector<std::vector<double>> found;
    for (const int count : {0, kAllBlocks}) {
      test::FakeDevice device;
      LoadOptions options;
      options.kernels = &cpu_kernels();
      options.stream = {1, &device};
      options.stream_blocks = count;
      if (quantized) options.format = formats::fp8;
      if (quantized) options.activations = DType::kBF16;
      const auto pipeline = load(options);
      // As `train` has it: encoders are let go of before.
      const auto data = examples(*pipeline);
      Trainer trainer(pipeline->model().without_encoders(), data, rules_);
      device.prefetches = 0;
      found.push_back(losses(trainer));
      const int blocks = pipeline->model().report().streamed.blocks;
      EXPECT_EQ(blocks > 2, count != 0);
      // Forward all, backward all but those that still lie there.
      EXPECT_EQ(device.prefetches, 3 * std::max(0, 2 * blocks - 2));
      EXPECT_EQ(device.under_way(), 0u);
    }
    EXPECT_EQ(found[1], found[0]);
  }
}

// Several batches for one step are one larger batch, whatever sizes they have.
TEST_P(ModelTraining, BatchesAddUp) {
  const auto pipeline = load();
  auto data = examples(*pipeline);
  data.resize(1);  // so that both take the same pictures
  rules_.steps = 3;
  rules_.batch = 4;
  Trainer whole(pipeline->shared_model(), data, rules_);
  rules_.batch = 2;
  rules_.accumulate = 2;
  Trainer parts(pipeline->shared_model(), data, rules_);
  while (!whole.done()) {
    const TrainStep a = whole.step(), b = parts.step();
    EXPECT_NEAR(a.loss, b.loss, 1e-5 * a.loss);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-4 * a.gradient_norm);
  }
}

TEST_P(ModelTraining, WhatIsWrittenChangesPictures) {
  const auto pipeline = load();
  rules_.steps = 5;
  rules_.targets = {GetParam().adapted.substr(GetParam().adapted.find('.') + 1) + ".weight"};
  Trainer trainer(pipeline->shared_model(), examples(*pipeline), rules_);
  losses(trainer);
  const TrainedLora lora = trainer.adapters();
  EXPECT_EQ(lora.modules.size(), 1u);
  EXPECT_GE(trainer.parameters(), rules_.rank * (GetParam().in + GetParam().out));
  GenerateRequest request;
  request.prompt = "a cat";
  request.width = GetParam().width;
  request.height = GetParam().height;
  request.steps = 2;
  const auto silent = [](const Progress&) {};
  const auto without = floats(generate(*pipeline, request, silent).latents);
  // The same in every naming.
  std::set<std::vector<float>> different;
  std::string flat = GetParam().adapted;
  std::replace(flat.begin(), flat.end(), '.', '_');
  // ComfyUI has tables of diffusers' paths: below "transformer.", and of U-Nets those of kohya.
  const bool unet = flat.starts_with("unet");
  const std::string comfy = unet ? "lora_" + flat + ".lora_down.weight"
                                 : std::string(GetParam().adapted) + ".lora_A.weight";
  for (const LoraNaming naming :
       {LoraNaming::kDiffusers, LoraNaming::kComfyUi, LoraNaming::kKohya}) {
    const std::string file = (dir_ / "lora.safetensors").string();
    write_lora(file, lora, naming, DType::kF32, {});
    if (naming == LoraNaming::kComfyUi) {
      EXPECT_NE(SafetensorsFile(file).find(comfy), nullptr) << comfy;
    }
    const auto adapter = pipeline->model().load_adapter(file);
    EXPECT_THAT(adapter->lora().report().unmatched, testing::IsEmpty());
    request.adapters = {{adapter, 1.0f}};
    const auto with = floats(generate(*pipeline, request, silent).latents);
    EXPECT_GT(relative_error(with, without), 1e-4);
    different.insert(with);
  }
  EXPECT_EQ(different.size(), 1u);
  const SafetensorsFile kohya(dir_ / "lora.safetensors");
  ASSERT_NE(kohya.find("lora_" + flat + ".lora_down.weight"), nullptr);
  EXPECT_EQ(floats(kohya.tensor("lora_" + flat + ".alpha"))[0], static_cast<float>(rules_.rank));
}

// Another part of what adapters read is left out in each step; a run can be repeated all the same.
TEST_P(ModelTraining, DropsOutAsDrawn) {
  const auto pipeline = load();
  const auto data = examples(*pipeline);
  rules_.steps = 4;
  Trainer plain(pipeline->shared_model(), data, rules_);
  const auto without = losses(plain);
  rules_.dropout = 0.5f;
  Trainer first(pipeline->shared_model(), data, rules_),
      again(pipeline->shared_model(), data, rules_);
  const auto with = losses(first);
  EXPECT_EQ(losses(again), with);
  EXPECT_EQ(with[0], without[0]) << "an adapter begins with nothing";
  EXPECT_NE(with[3], without[3]);
  EXPECT_THAT(first.notes(), testing::IsEmpty());
  rules_.dropout = 1;
  EXPECT_THAT(error_of([&] { Trainer(pipeline->shared_model(), data, rules_); }),
              HasSubstr("dropout"));
}

// On a base in any format: the gradient goes through what is stored.
TEST_P(ModelTraining, TrainsOnAQuantizedBase) {
  rules_.steps = test::kSanitized ? 2 : 12;
  for (const Format& format : {formats::fp8, formats::mxfp8, formats::nvfp4}) {
    LoadOptions options = test::tested_options();
    options.format = format;
    options.activations = DType::kBF16;
    const auto pipeline = load(options);
    Trainer trainer(pipeline->shared_model(), examples(*pipeline), rules_);
    const auto all = losses(trainer);
    if (!test::kSanitized) {
      EXPECT_LT(mean_of(all, 6, 12), 1.02 * mean_of(all, 0, 6)) << format.name;
    }
    TrainRules small = rules_;
    small.fp8_gradients = true;
    Trainer rounded(pipeline->shared_model(), examples(*pipeline), small);
    const auto near = losses(rounded);
    EXPECT_EQ(near[0], all[0]) << "the first forward pass knows no gradient";
    EXPECT_NE(near, all) << format.name << ": gradients were not rounded";
    for (size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(near[i], all[i], 0.05 * all[i]) << i;
    EXPECT_EQ(pipeline->model().report().formats.size(), 1u) << format.name;
    for (const auto& [weight, module] : trainer.adapters().modules) {
      const auto up = floats(module.up);  // zero before the first gradient
      EXPECT_EQ(std::ranges::any_of(up, [](float v) { return v != 0; }),
                weight != GetParam().unread)
          << weight;
    }
  }
}

// Gradients beside those in high precision: nearer in 8 bits than in 4, and timed.
TEST_P(ModelTraining, TriesFormatsBesideHighPrecision) {
  HT_SKIP_WHERE_SANITIZED();
  rules_.check_gradients = true;
  rules_.fp8_gradients = true;
  std::vector<double> worst;
  for (const Format& format : {formats::fp8, formats::nvfp4}) {
    LoadOptions options = test::tested_options();
    options.format = format;
    options.activations = DType::kBF16;
    const auto pipeline = load(options);
    Trainer trainer(pipeline->shared_model(), examples(*pipeline), rules_);
    const Trainer::Trial trial = trainer.try_gradients();
    EXPECT_GT(trial.seconds, 0);
    EXPECT_GT(trial.wide_seconds, 0);
    worst.push_back(1);
    for (const auto& [weight, cosine] : trial.cosines) {
      EXPECT_LE(cosine, 1 + 1e-9) << weight;
      worst.back() = std::min(worst.back(), cosine);
    }
  }
  EXPECT_GT(worst[0], 0.9);
  EXPECT_GT(worst[0], worst[1]);
}

// Both are compared on the way to the pictures, whoever teaches and whatever is dropped.
TEST_P(ModelTraining, ComparesGradientsOfTheSameLoss) {
  HT_SKIP_WHERE_SANITIZED();
  rules_.check_gradients = true;
  LoadOptions options = test::tested_options();
  options.format = formats::fp8;
  options.activations = DType::kBF16;
  const auto pipeline = load(options);
  const auto cosines = [&] {
    Trainer trainer(pipeline->shared_model(), examples(*pipeline), rules_);
    trainer.step();
    std::map<std::string, double> of;
    for (const auto& [weight, cosine] : trainer.gradient_cosines()) of[weight] = cosine;
    return of;
  };
  rules_.dropout = 0.5f;
  for (const auto& [weight, cosine] : cosines()) EXPECT_GT(cosine, 0.9) << weight;
  rules_.dropout = 0;
  rules_.mode = TrainMode::kQat;
  rules_.optimizer.learning_rate = 0;
  const auto plain = cosines();
  rules_.teacher = true;
  EXPECT_EQ(cosines(), plain);
}

// What is computed again need not be kept, and nothing else changes.
TEST_P(ModelTraining, RecomputingTakesLessMemory) {
  const auto pipeline = load();
  std::vector<int64_t> arenas;
  std::vector<double> losses_of;
  for (const Recompute how : {Recompute::kNone, Recompute::kRows, Recompute::kBlocks}) {
    rules_.recompute = how;
    Trainer trainer(pipeline->shared_model(), examples(*pipeline), rules_);
    arenas.push_back(trainer.plan().arena);
    trainer.step();
    losses_of.push_back(trainer.step().loss);
  }
  EXPECT_LT(arenas[1], arenas[0]);
  EXPECT_LT(arenas[2], arenas[1]);
  EXPECT_NEAR(losses_of[1], losses_of[0], 1e-4 * losses_of[0]);
  EXPECT_NEAR(losses_of[2], losses_of[0], 1e-4 * losses_of[0]);
}

// The weights themselves: what is written runs, as what was trained does.
TEST_P(ModelTraining, TrainsTheWholeModel) {
  const auto pipeline = load();
  const auto data = examples(*pipeline);
  rules_.mode = TrainMode::kFull;
  rules_.optimizer.learning_rate = 1e-3f;
  Trainer trainer(pipeline->shared_model(), data, rules_);
  const auto first = losses(trainer);
  if (!test::kSanitized) {
    EXPECT_LT(mean_of(first, 16, 24), 0.97 * mean_of(first, 0, 8));
  }
  EXPECT_THAT(trainer.notes(), testing::IsEmpty());
  const auto trained = trainer.weights();
  EXPECT_EQ(trainer.parts(), static_cast<int64_t>(trained.size()));
  for (const auto& [name, before] : pipeline->model().originals()) {
    EXPECT_EQ(trained.contains(name), name != GetParam().constant) << name;
    if (name == GetParam().constant) continue;
    EXPECT_NE(floats(trained.at(name)), floats(std::get<Tensor>(before))) << name;
  }
  const std::string file = (dir_ / "trained.safetensors").string();
  write_weights(file, pipeline->model(), trained, DType::kF32, {});
  GenerateRequest request;
  request.prompt = "a cat";
  request.width = GetParam().width;
  request.height = GetParam().height;
  request.steps = 2;
  const auto made = [&](Pipeline& from) {
    return floats(generate(from, request, [](const Progress&) {}).latents);
  };
  Pipeline changed(pipeline->model().with_weights(stored_weights(trained, DType::kF32)));
  const auto read = test::load_pipeline(dir_ / "model", test::tested_options(), file);
  EXPECT_EQ(made(*read), made(changed));
  EXPECT_GT(relative_error(made(*read), made(*pipeline)), 1e-3);
}

// Weights that are rounded in the graph are those that a quantized model has.
TEST_P(ModelTraining, RoundsWhatItTrains) {
  rules_.steps = 2;
  for (const Format& format : {formats::fp8, formats::fp8_tensor, formats::mxfp8, formats::nvfp4}) {
    SCOPED_TRACE(format.name);
    LoadOptions options = test::tested_options();
    options.format = format;
    options.activations = DType::kBF16;
    const auto pipeline = load(options);
    rules_.mode = TrainMode::kLora;
    Trainer adapter(pipeline->shared_model(), examples(*pipeline), rules_);
    rules_.mode = TrainMode::kQat;
    Trainer trainer(pipeline->shared_model(), examples(*pipeline), rules_);
    const double loss = adapter.step().loss;  // an adapter begins with nothing
    EXPECT_NEAR(trainer.step().loss, loss, GetParam().sensitivity * 1e-3 * loss);
  }
  const auto plain = load();
  EXPECT_THAT(error_of([&] { Trainer(plain->shared_model(), examples(*plain), rules_); }),
              HasSubstr("precision"));
}

// Through rounding, from pictures or from the model before it was rounded.
TEST_P(ModelTraining, LearnsThroughRounding) {
  HT_SKIP_WHERE_SANITIZED();
  LoadOptions options = test::tested_options();
  options.format = formats::nvfp4;
  options.activations = DType::kBF16;
  const auto pipeline = load(options);
  const auto data = examples(*pipeline);
  rules_.mode = TrainMode::kQat;
  rules_.steps = 16;
  const auto sum = [&](bool teacher, float rate) {
    rules_.teacher = teacher;
    rules_.optimizer.learning_rate = rate;
    Trainer trainer(pipeline->shared_model(), data, rules_);
    const auto all = losses(trainer);
    return mean_of(all, 8, 16);
  };
  const double pictures = sum(false, 0), rounding = sum(true, 0);
  EXPECT_LT(rounding, 0.5 * pictures) << "the teacher does not know the pictures";
  EXPECT_GT(rounding, 0);
  EXPECT_LT(sum(false, 1e-3f), 0.97 * pictures);
  EXPECT_LT(sum(true, 3e-5f), 0.97 * rounding);
}

TEST_P(ModelTraining, WrongRulesNameTheirField) {
  const auto pipeline = load();
  const auto model = pipeline->shared_model();
  EXPECT_THAT(error_of([&] { Trainer(model, {}, rules_); }), HasSubstr("data"));
  const auto data = examples(*pipeline);
  rules_.targets = {"nothing.*"};
  EXPECT_THAT(error_of([&] { Trainer(model, data, rules_); }), HasSubstr("targets"));
  rules_.targets = {};
  rules_.rank = 0;
  EXPECT_THAT(error_of([&] { Trainer(model, data, rules_); }), HasSubstr("rank"));
}

}  // namespace
}  // namespace halftone
