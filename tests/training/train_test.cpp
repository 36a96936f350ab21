// A whole run, for every family: what it writes, what it survives, where it goes on.
#include "halftone/training/train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>

#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/kernels/adamw.h"
#include "tests/support/errors.h"
#include "tests/support/run_graph.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::read_file;
using testing::HasSubstr;

class Train : public testing::TestWithParam<test::TinyModel> {
 protected:
  Train() {
    GetParam().write(dir_ / "model");
    fs::create_directories(dir_ / "data");
    for (int i = 0; i < 5; ++i) {
      const int64_t width = i % 2 == 0 ? 40 : 24, height = i % 2 == 0 ? 40 : 48;
      PngImage image{width, height, {}, {}};
      for (int64_t p = 0; p < width * height * 3; ++p) {
        image.rgb.push_back(static_cast<uint8_t>((p * (i + 3)) % 251));
      }
      write_png(dir_ / ("data/" + std::to_string(i) + ".png"), image);
      test::write_file(dir_ / ("data/" + std::to_string(i) + ".txt"),
                       i == 2 ? "two dogs on a hill in winter" : "a cat");
    }
  }

  TrainOptions options(const std::string& output) const {
    TrainOptions o;
    o.model.path = (dir_ / "model").string();
    o.model.precision = "fp32";
    o.model.device = "cpu";
    o.data = dir_ / "data";
    o.output = dir_ / output;
    o.cache = dir_ / "cache";
    o.resolution = 32;
    o.rules.steps = 6;
    o.rules.batch = 2;
    o.rules.rank = 2;
    o.rules.alpha = 2;
    o.rules.optimizer.learning_rate = 1e-2f;
    return o;
  }
  TrainResult run(const TrainOptions& o) {
    return train(engine_, o, [&](const TrainEvent& event) { events_.push_back(event); });
  }
  template <class Event>
  int64_t count() const {
    return std::count_if(events_.begin(), events_.end(), [](const TrainEvent& event) {
      return std::holds_alternative<Event>(event);
    });
  }
  // Ends the run after so many steps.
  std::string stop_after(TrainOptions o, int steps) {
    int done = 0;
    o.stop = [&] { return ++done == steps; };
    return error_of([&] { run(o); });
  }

  const test::TempDir dir_;
  Engine engine_;
  std::vector<TrainEvent> events_;
};
INSTANTIATE_TEST_SUITE_P(, Train, testing::ValuesIn(test::few_tiny_models()),
                         [](const auto& tested) {
                           std::string name = tested.param.family;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

TEST_P(Train, FromPicturesToAnAdapter) {
  test::write_file(dir_ / "data/alone.txt", "x");
  test::write_file(dir_ / "data/bad.png", "no picture");
  test::write_file(dir_ / "data/bad.txt", "x");
  TrainOptions o = options("out.safetensors");
  o.captions.trigger = "zwx";
  o.samples.every = 4;
  o.samples.prompts = {"a cat"};
  o.samples.steps = 2;
  const TrainResult result = run(o);
  EXPECT_EQ(result.pictures, 5u);
  EXPECT_EQ(result.skipped.size(), 2u);
  EXPECT_EQ(result.curve.size(), 6u);
  EXPECT_EQ(result.sizes.size(), 2u);
  EXPECT_EQ(count<TrainProgress>(), 6);
  EXPECT_EQ(count<TrainModelLoaded>(), 1);
  EXPECT_EQ(count<TrainComplete>(), 1);
  EXPECT_EQ(count<SampleMade>(), 3);  // before, at step 4 and at the end
  for (const SampleMade& sample : result.samples) EXPECT_GT(read_png(sample.path).width, 0);
  EXPECT_NE(read_file(result.samples[0].path), read_file(result.samples[2].path));
  EXPECT_GT(result.planned_bytes, 0);
  const SafetensorsFile file(o.output);
  EXPECT_EQ(file.metadata().at("halftone.trigger"), "zwx");
  EXPECT_EQ(file.metadata().at("halftone.base").size(), 32u);
  EXPECT_EQ(file.tensors().size(), 2 * static_cast<size_t>(result.model.parts));
  // A second run finds everything encoded, and gives the same bytes.
  events_.clear();
  o.output = dir_ / "again.safetensors";
  const auto files = std::distance(fs::directory_iterator(dir_ / "cache"), {});
  run(o);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / "cache"), {}), files);
  EXPECT_EQ(read_file(o.output), read_file(dir_ / "out.safetensors"));
}

// The loss on pictures that no step sees: the same noise every time, so that it says something.
TEST_P(Train, HeldOutPicturesAreMeasuredAndChangeNothing) {
  fs::create_directories(dir_ / "held");
  for (const char* name : {"0.png", "0.txt", "1.png", "1.txt"}) {
    fs::copy(dir_ / "data" / name, dir_ / "held" / name);
  }
  TrainOptions o = options("plain.safetensors");
  o.rules.dropout = 0.3f;  // which is for training alone
  o.samples.every = 0;
  run(o);
  o.output = dir_ / "measured.safetensors";
  o.held_out.data = dir_ / "held";
  o.held_out.every = 4;
  const TrainResult measured = run(o);
  EXPECT_EQ(read_file(o.output), read_file(dir_ / "plain.safetensors"));
  ASSERT_EQ(measured.held_out.size(), 3u);  // before, at step 4 and at the end
  EXPECT_EQ(measured.held_out[1].step, 4);
  EXPECT_EQ(measured.held_out_pictures, 2u);
  EXPECT_EQ(count<HeldOutLoss>(), 3);
  EXPECT_GT(measured.held_out[0].loss, 0);
  EXPECT_NE(measured.held_out[0].loss, measured.held_out[2].loss);
  EXPECT_THAT(read_file(measured.report), HasSubstr("2 pictures that are not trained on"));
  // Another seed, the same model, the same loss before the first step; and a run that goes on has
  // all of them.
  o.rules.seed = 7;
  o.output = dir_ / "other.safetensors";
  EXPECT_EQ(run(o).held_out[0].loss, measured.held_out[0].loss);
  o.rules.seed = 0;
  o.output = dir_ / "later.safetensors";
  EXPECT_THAT(stop_after(o, 5), HasSubstr("step 5 is saved"));
  o.resume = true;
  const TrainResult resumed = run(o);
  ASSERT_EQ(resumed.held_out.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(resumed.held_out[i].step, measured.held_out[i].step);
    EXPECT_EQ(resumed.held_out[i].loss, measured.held_out[i].loss);
  }
}

// The mean is what is written, so its loss is what is told: that of the file, before any step.
TEST_P(Train, HeldOutLossesAreThoseOfTheMeanThatIsWritten) {
  TrainOptions o = options("plain.safetensors");
  o.rules.mode = TrainMode::kFull;
  o.rules.average = 0.9;
  o.stored = DType::kF32;
  run(o);
  for (const bool small : {false, true}) {
    o.rules.small_weights = small;
    o.output = dir_ / (small ? "small.safetensors" : "mean.safetensors");
    o.held_out.data = dir_ / "data";
    o.held_out.every = 2;
    const double last = run(o).held_out.back().loss;
    TrainOptions next = options("next.safetensors");
    next.model.path = o.output.string();
    next.model.base = (dir_ / "model").string();
    next.held_out.data = dir_ / "data";
    next.rules.steps = 1;
    // Weights in bf16 show the mean as they would show themselves.
    EXPECT_NEAR(run(next).held_out[0].loss, last, (small ? 5e-3 : 1e-6) * last);
  }
  EXPECT_EQ(read_file(dir_ / "mean.safetensors"), read_file(dir_ / "plain.safetensors"))
      << "what is measured changes nothing";
}

// Interrupted while it measures, or after: in the end it has told what an uninterrupted one tells.
TEST_P(Train, GoesOnWithWhatItWasInterruptedIn) {
  TrainOptions o = options("whole.safetensors");
  o.model.precision = "fp8";
  o.rules.check_gradients = true;
  o.rules.steps = 30;  // gradients are checked after the third
  o.rules.batch = 1;
  o.resolution = 16;
  o.held_out.data = dir_ / "data";
  o.held_out.every = 2;
  o.samples.every = 10;
  o.samples.prompts = {"a cat", "a dog"};
  o.samples.steps = 1;
  const TrainResult whole = run(o);
  o.output = dir_ / "parts.safetensors";
  o.resume = true;
  std::optional<TrainResult> parts;
  for (const int step : {2, 3, 10, 10, 30}) {  // in what follows this step
    bool now = false;
    TrainOptions stopped = o;
    int kernels = 0, samples = 0;
    stopped.model.cancelled = [&] { return now && ++kernels > 3; };
    EXPECT_THAT(error_of([&] {
                  train(engine_, stopped, [&](const TrainEvent& event) {
                    const auto* at = std::get_if<TrainProgress>(&event);
                    now = now || (at != nullptr && at->step == step && step != 10);
                    samples += std::holds_alternative<SampleMade>(event) ? 1 : 0;
                    now = now || (step == 10 && at == nullptr && samples % 2 == 1 &&
                                  !std::holds_alternative<HeldOutLoss>(event));
                  });
                }),
                HasSubstr("interrupted"));
  }
  parts = run(o);
  ASSERT_EQ(parts->held_out.size(), whole.held_out.size());
  for (size_t i = 0; i < whole.held_out.size(); ++i) {
    EXPECT_EQ(parts->held_out[i].step, whole.held_out[i].step);
    EXPECT_EQ(parts->held_out[i].loss, whole.held_out[i].loss);
  }
  ASSERT_EQ(parts->cosines.size(), whole.cosines.size());
  for (size_t i = 0; i < whole.cosines.size(); ++i) {
    EXPECT_EQ(parts->cosines[i].weight, whole.cosines[i].weight);
    EXPECT_EQ(parts->cosines[i].cosine, whole.cosines[i].cosine);
  }
  ASSERT_EQ(parts->samples.size(), whole.samples.size());
  for (size_t i = 0; i < whole.samples.size(); ++i) {
    EXPECT_EQ(parts->samples[i].step, whole.samples[i].step);
    EXPECT_EQ(parts->samples[i].prompt, whole.samples[i].prompt);
  }
}

// A curve is of the same pictures from its beginning to its end.
TEST_P(Train, OtherHeldOutPicturesBeginAnotherCurve) {
  fs::create_directories(dir_ / "held");
  for (const char* name : {"0.png", "0.txt", "1.png", "1.txt"}) {
    fs::copy(dir_ / "data" / name, dir_ / "held" / name);
  }
  TrainOptions o = options("out.safetensors");
  o.held_out.data = dir_ / "held";
  o.held_out.every = 2;
  const auto warnings = [&] {
    std::string all;
    for (const TrainEvent& event : events_) {
      if (const auto* warning = std::get_if<TrainWarning>(&event)) all += warning->message + "\n";
    }
    return all;
  };
  stop_after(o, 3);
  EXPECT_THAT(warnings(), HasSubstr("held-out: 2 of 2 pictures are trained on, too; the first: "));
  EXPECT_THAT(warnings(), testing::Not(HasSubstr("anew")));
  fs::remove(dir_ / "held/1.png");
  fs::remove(dir_ / "held/1.txt");
  o.resume = true;
  o.rules.warmup = 7;
  EXPECT_THAT(error_of([&] { run(o); }), HasSubstr("warmup: is 7 now"));
  EXPECT_THAT(warnings(), HasSubstr("warmup: is 7 of 6 steps"));
  o.rules.warmup = 0;
  const TrainResult result = run(o);
  EXPECT_THAT(warnings(), HasSubstr("held-out: what the loss was measured on before step 3 is "));
  std::vector<int64_t> steps;
  for (const HeldOutLoss& at : result.held_out) steps.push_back(at.step);
  EXPECT_THAT(steps, testing::ElementsAre(3, 4, 6));
}

TEST_P(Train, StrictRunsFallBackOnNothing) {
  TrainOptions o = options("out.safetensors");
  o.model.strict = true;
  o.rules.steps = 1;
  run(o);
  o.rules.fp8_gradients = true;
  const auto code_of = [&] {
    try {
      run(o);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kUsage;
  };
  EXPECT_EQ(code_of(), ErrorCode::kFallback);
  o.rules.mode = TrainMode::kFull;
  o.rules.fp8_weight_gradients = true;
  EXPECT_EQ(code_of(), ErrorCode::kFallback);
  o.model.strict = false;
  events_.clear();
  run(o);
  EXPECT_EQ(count<TrainWarning>(), 2);  // of either
}

// A short form of what docs/training.md measures over 500 steps: how far the loss on pictures that
// are not trained on comes down.
TEST_P(Train, LowPrecisionLearnsAsMuch) {
  HT_SKIP_WHERE_SANITIZED();
  const auto learned = [&](const char* precision) {
    TrainOptions o = options(std::string(precision) + ".safetensors");
    o.model.precision = precision;
    o.rules.fp8_gradients = std::string(precision) != "fp32";
    o.rules.steps = o.held_out.every = 10;
    o.held_out.data = dir_ / "data";
    const TrainResult result = run(o);
    return result.held_out.front().loss - result.held_out.back().loss;
  };
  const double whole = learned("fp32");
  EXPECT_GT(whole, 0);
  EXPECT_GE(learned("fp8"), 0.9 * whole);
  EXPECT_GE(learned("mxfp8"), 0.9 * whole);
  EXPECT_GE(learned("nvfp4"), 0.8 * whole);
}

// Where fp8 is emulated, as on the CPU, "auto" does not train in it, and says so.
TEST_P(Train, AutomaticPrecisionIsOneThatIsNative) {
  TrainOptions o = options("out.safetensors");
  o.model.precision = "auto";
  o.choose_backward = true;
  const TrainResult result = run(o);
  EXPECT_EQ(result.model.precision.asked, "auto");
  EXPECT_EQ(result.model.precision.used, "fp32");
  EXPECT_THAT(result.model.precision.why, HasSubstr("fp8 is emulated here"));
  EXPECT_EQ(result.model.backward.asked, "auto");
  EXPECT_EQ(result.model.backward.used, "fp32");
}

TEST_P(Train, GradientsAreComparedWithThoseOfABaseInHighPrecision) {
  TrainOptions o = options("out.safetensors");
  o.rules.check_gradients = true;
  EXPECT_THAT(error_of([&] { run(o); }), HasSubstr("check-gradients"));
  std::map<std::string, double> worst;
  for (const char* precision : {"fp8", "nvfp4"}) {
    o.model.precision = precision;
    o.rules.fp8_gradients = true;
    const TrainResult result = run(o);
    ASSERT_EQ(result.cosines.size(), static_cast<size_t>(result.model.parts));
    worst[precision] = 1;
    for (const auto& [weight, cosine] : result.cosines) {
      EXPECT_GT(cosine, 0.5) << weight;
      EXPECT_LE(cosine, 1 + 1e-9) << weight;
      worst[precision] = std::min(worst[precision], cosine);
    }
    EXPECT_THAT(read_file(result.report), HasSubstr(result.cosines[0].weight));
  }
  EXPECT_EQ(count<GradientsChecked>(), 2);
  EXPECT_GT(worst["fp8"], worst["nvfp4"]);
  EXPECT_LT(worst["fp8"], 1);
}

TEST_P(Train, WholeModelsInEveryPrecisionOfWeightsAndGradients) {
  TrainOptions o = options("out.safetensors");
  o.rules.mode = TrainMode::kFull;
  o.rules.optimizer.learning_rate = 1e-4f;
  o.model.precision = "fp8";
  o.rules.fp8_gradients = true;
  std::vector<std::vector<TrainStep>> curves;
  for (const auto& [weights, gradients] : {std::pair(false, false), {true, false}, {false, true}}) {
    o.rules.small_weights = weights;
    o.rules.fp8_weight_gradients = gradients;
    curves.push_back(run(o).curve);
  }
  for (size_t i = 0; i < curves[0].size(); ++i) {
    for (const size_t other : {1, 2}) {
      EXPECT_NEAR(curves[other][i].loss, curves[0][i].loss, 0.02 * curves[0][i].loss);
    }
  }
  EXPECT_EQ(curves[2][0].loss, curves[0][0].loss);  // gradients alone differ
  EXPECT_NEAR(curves[2][0].gradient_norm, curves[0][0].gradient_norm,
              0.05 * curves[0][0].gradient_norm);
  EXPECT_NE(curves[2][0].gradient_norm, curves[0][0].gradient_norm);
  EXPECT_NE(curves[1][3].loss, curves[0][3].loss);
  o.rules.fp8_gradients = false;
  EXPECT_THAT(error_of([&] { run(o); }), HasSubstr("weight-gradient"));
}

TEST_P(Train, GoesOnWhereItWasStopped) {
  std::vector<TrainOptions> kinds;
  for (int kind = 0; kind < 3; ++kind) {
    TrainOptions o = options("whole.safetensors");
    o.rules.rate = kind == 1 ? RateShape::kCosine : RateShape::kConstant;
    o.rules.small_moments = kind == 1;
    o.rules.average = kind == 2 ? 0.9 : 0;
    o.rules.accumulate = kind == 2 ? 2 : 1;
    o.rules.caption_dropout = kind == 2 ? 0.3 : 0;
    kinds.push_back(o);
  }
  for (TrainOptions& o : kinds) {
    const TrainResult whole = run(o);
    o.output = dir_ / "parts.safetensors";
    o.resume = true;
    for (const int steps : {1, 3}) {
      const std::string error = stop_after(o, steps);
      EXPECT_THAT(error, HasSubstr("is saved as"));
      EXPECT_FALSE(fs::exists(o.output));
    }
    const TrainResult parts = run(o);
    EXPECT_EQ(parts.resumed_from, 4);
    EXPECT_EQ(read_file(o.output), read_file(dir_ / "whole.safetensors"));
    ASSERT_EQ(parts.curve.size(), whole.curve.size());
    for (size_t i = 0; i < whole.curve.size(); ++i) {
      EXPECT_EQ(parts.curve[i].loss, whole.curve[i].loss);
    }
    fs::remove_all(dir_ / "parts.checkpoints");
    fs::remove(o.output);
  }
}

TEST_P(Train, CheckpointsThatAreDamagedOrOfAnotherRun) {
  TrainOptions o = options("out.safetensors");
  o.save_every = 2;
  o.rules.steps = 4;
  run(o);
  const fs::path checkpoints = dir_ / "out.checkpoints";
  EXPECT_TRUE(fs::exists(checkpoints / "step-000002/adapter.safetensors"));
  // A bit of the last one changed: the one before it is taken.
  const fs::path state = checkpoints / "step-000004/state.safetensors";
  std::string bytes = read_file(state);
  bytes[bytes.size() - 100] ^= 1;
  test::write_file(state, bytes);
  o.resume = true;
  o.rules.steps = 5;
  events_.clear();
  EXPECT_EQ(run(o).resumed_from, 2);
  EXPECT_GE(count<TrainWarning>(), 1);
  o.rules.rank = 3;
  EXPECT_THAT(error_of([&] { run(o); }), HasSubstr("rank: is 3 now, and"));
  o.rules.rank = 2;
  test::write_file(dir_ / "data/0.txt", "a changed caption");
  EXPECT_THAT(error_of([&] { run(o); }), HasSubstr("data: is another one than"));
}

TEST_P(Train, EncodedFilesThatAreDamagedAreMadeAgain) {
  TrainOptions o = options("out.safetensors");
  o.rules.steps = 2;
  run(o);
  const std::string first = read_file(o.output);
  for (const auto& file : fs::directory_iterator(dir_ / "cache")) {
    std::string bytes = read_file(file.path());
    bytes[bytes.size() - 4] ^= 1;
    test::write_file(file.path(), bytes);
  }
  events_.clear();
  run(o);
  EXPECT_EQ(read_file(o.output), first);
  EXPECT_EQ(count<TrainWarning>(), 1);
}

TEST_P(Train, WhatCannotBeTrainedIsNamed) {
  const auto error_with = [&](const auto& change) {
    TrainOptions o = options("out.safetensors");
    change(o);
    return error_of([&] { run(o); });
  };
  EXPECT_THAT(error_with([&](auto& o) { o.data = dir_ / "none"; }), HasSubstr("data: '"));
  EXPECT_THAT(error_with([&](auto& o) { o.output = dir_ / "out.bin"; }), HasSubstr("output: "));
  EXPECT_THAT(error_with([&](auto& o) { o.targets = {"nothing*"}; }),
              HasSubstr("targets: 'nothing*' match no linear"));
  EXPECT_THAT(error_with([&](auto& o) { o.resolution = 33; }), HasSubstr("resolution: 33"));
  EXPECT_THAT(error_with([&](auto& o) { o.max_memory = 1000; }),
              testing::AllOf(HasSubstr("max-memory: "), HasSubstr("that is to encode pictures")));
  fs::create_directories(dir_ / "empty");
  EXPECT_THAT(error_with([&](auto& o) { o.data = dir_ / "empty"; }), HasSubstr("holds no picture"));
  test::write_file(dir_ / "empty/a.png", "x");
  EXPECT_THAT(error_with([&](auto& o) { o.data = dir_ / "empty"; }),
              HasSubstr("nothing is left of '"));
}

// A rate that no model survives: the run ends, says where, and keeps what was before.
TEST_P(Train, NumbersThatAreNoneEndIt) {
  TrainOptions o = options("out.safetensors");
  o.rules.optimizer.learning_rate = 1e30f;
  o.rules.clip = 0;
  o.rules.steps = 50;
  const std::string error = error_of([&] { run(o); });
  EXPECT_THAT(error, HasSubstr("training: the loss of step "));
  EXPECT_THAT(error, HasSubstr("is saved as"));
}

// Moments of 8 bits lead where those of 32 lead.
TEST(SmallMoments, FollowTheLargeOnes) {
  constexpr int64_t kCount = 1000;  // not a whole number of blocks
  const auto descend = [&](bool small) {
    const Kernels& kernels = cpu_kernels();
    Tensor p = test::random_tensor({kCount}, 1), g = Tensor::zeros(DType::kF32, {kCount});
    const DType moments = small ? DType::kF8E4M3 : DType::kF32;
    Tensor first = Tensor::zeros(moments, {kCount}), second = Tensor::zeros(moments, {kCount});
    Tensor first_scales = Tensor::zeros(DType::kF32, {4}),
           second_scales = Tensor::zeros(DType::kF32, {4});
    const auto view = [](Tensor& x) {
      return View{x.mutable_bytes().data(), x.dtype(), x.shape()};
    };
    for (int64_t step = 1; step <= 300; ++step) {
      for (int64_t i = 0; i < kCount;
           ++i) {  // of sum(a (p - 1)^2), steep here and flat there, 1 to 10000
        const float steepness = std::pow(10.0f, static_cast<float>(i % 5) - 2);
        g.mutable_as<float>()[i] = steepness * (p.as<float>()[i] - 1);
      }
      AdamWArgs args;
      args.learning_rate = 0.02f;
      args.weight_decay = 0;
      args.step = step;
      args.gradients = {g.address(), g.dtype(), g.shape()};
      args.parameters = view(p);
      args.first = view(first);
      args.second = view(second);
      if (small) {
        args.first_scales = view(first_scales);
        args.second_scales = view(second_scales);
      }
      kernels.adamw.launch(args, {2});
    }
    double distance = 0;
    for (const float v : p.as<float>()) distance += std::abs(v - 1);
    return distance / kCount;
  };
  const double large = descend(false), small = descend(true);
  EXPECT_LT(large, 0.02);
  EXPECT_LT(small, 0.04);
}

// Steps of a 400th of a value's last bit: rounded to the nearest, nothing would ever move.
TEST(SmallWeights, SmallStepsCountInTheMean) {
  constexpr int64_t kCount = 4096;
  Tensor p = Tensor::zeros(DType::kBF16, {kCount}), g = Tensor::zeros(DType::kF32, {kCount});
  Tensor first = Tensor::zeros(DType::kF32, {kCount}),
         second = Tensor::zeros(DType::kF32, {kCount});
  std::ranges::fill(p.mutable_as<bf16>(), to_bf16(1));
  std::ranges::fill(g.mutable_as<float>(), 1.0f);
  const auto view = [](Tensor& x) { return View{x.mutable_bytes().data(), x.dtype(), x.shape()}; };
  constexpr int64_t kSteps = 200;
  constexpr float kRate = 0x1p-8f / 400;  // below 1, bf16's numbers are 2^-8 apart
  std::vector<float> one_step;
  for (int64_t step = 1; step <= kSteps; ++step) {
    AdamWArgs args;
    args.learning_rate = kRate;
    args.weight_decay = 0;
    args.step = step;
    args.rounding = {3, static_cast<uint64_t>(step)};
    args.gradients = {g.address(), g.dtype(), g.shape()};
    args.parameters = view(p);
    args.first = view(first);
    args.second = view(second);
    cpu_kernels().adamw.launch(args, {2});
    if (step == 1) one_step = test::floats(p);
  }
  const auto mean = [](const std::vector<float>& values) {
    double sum = 0;
    for (const float v : values) sum += v;
    return sum / static_cast<double>(values.size());
  };
  const double moved = 1 - mean(test::floats(p));
  EXPECT_NEAR(moved, kSteps * kRate, 0.1 * kSteps * kRate);
  EXPECT_GT(std::ranges::count(one_step, 1.0f), kCount / 2);
  EXPECT_LT(std::ranges::count(one_step, 1.0f), kCount);
}
TEST(SmallWeights, RoundingByChanceKeepsWhatIsExactAndWhatIsNoNumber) {
  const auto rounded = [](float v, uint32_t random) {
    return to_float(ParameterValues::rounded_by_chance(v, random));
  };
  for (const uint32_t random : {0u, 1u, 0x7FFFu, 0xFFFFu, 0xFFFFFFFFu}) {
    for (const float v : {0.0f, -0.0f, 1.0f, -3.5f, 0x1p-126f, -0x1p127f}) {
      EXPECT_EQ(rounded(v, random), v);
    }
    EXPECT_TRUE(std::isnan(rounded(std::nanf(""), random)));
    EXPECT_EQ(rounded(INFINITY, random), INFINITY);
    EXPECT_EQ(rounded(-INFINITY, random), -INFINITY);
  }
  EXPECT_EQ(rounded(1 + 0x1p-8f, 0x7FFF), 1.0f);  // half way between 1 and 1 + 2^-7
  EXPECT_EQ(rounded(1 + 0x1p-8f, 0x8000), 1 + 0x1p-7f);
  EXPECT_EQ(rounded(-1 - 0x1p-8f, 0x8000), -1 - 0x1p-7f);
}

TEST(SmallMoments, RootsAreRoundedUp) {
  for (const float scale : {1e-20f, 3e-3f, 1.0f, 5e7f}) {
    for (float root = scale * 1e-5f; root < scale * 448; root *= 1.37f) {
      const float back = decode<E4M3>(encode_root(root, scale)) * scale;
      EXPECT_GE(back, root);
      EXPECT_LE(back, root + std::max(root * 0.126f, scale * 0x1p-9f));
    }
  }
  EXPECT_EQ(encode_root(0, 1), 0);
  EXPECT_EQ(moment_scale(0), 0);
}

}  // namespace
}  // namespace halftone
