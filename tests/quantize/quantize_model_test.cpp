// Quantizing a whole model as a library call: fields in Errors, passes over the prompts, and runs
// that go on where they were interrupted.
#include "halftone/quantize/quantize_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "halftone/base/error.h"
#include "halftone/io/safetensors_file.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class QuantizeModel : public testing::Test {
 protected:
  QuantizeModel() {
    const fs::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_guided.safetensors");
    test::write_zimage_folder(dir_ / "model", nlohmann::json::parse(fixture.metadata().at("case")),
                              data / "tokenizer" / "tokenizer.json");
    options_.model.path = (dir_ / "model").string();
    options_.model.device = "cpu";
    options_.model.threads = 2;
    options_.sampling.size = std::pair(24, 16);
    options_.sampling.steps = 3;
    options_.output = dir_ / "out";
    options_.format = formats::nvfp4;
    options_.calibrate = true;
    options_.prompts = {"a red circle", "two squares", "a line", "a blue dot"};
    options_.certify = 0;
  }

  ModelQuantizeResult run(const std::string& output) {
    options_.output = dir_ / output;
    steps_.clear();
    notes_.clear();
    QuantizeModelEvents events;
    events.progress = [&](const QuantizeModelEvents::Stage& stage, const Progress& p) {
      if (stage.name == stop_in_ && p.done == stop_at_) {
        throw Error(ErrorCode::kCancelled, "", "interrupted");
      }
      ++steps_[std::string(stage.name)];
    };
    events.note = [&](const std::string& line) { notes_.push_back(line); };
    return quantize_model(engine_, options_, events);
  }
  // Ends in this stage, at this step.
  std::string interrupted(const std::string& output, const std::string& stage, int64_t at) {
    stop_in_ = stage;
    stop_at_ = at;
    const std::string error = test::error_of([&] { run(output); });
    stop_in_.clear();
    return error;
  }
  void expect_same(const std::string& a, const std::string& b) const {
    for (const char* file :
         {"recipe.toml", "calibration.json", "transformer/diffusion_pytorch_model.safetensors"}) {
      EXPECT_TRUE(test::read_file(dir_ / a / file) == test::read_file(dir_ / b / file)) << file;
    }
  }
  // What a run leaves beside its output.
  std::set<std::string> left() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      if (entry.is_regular_file()) names.insert(entry.path().filename().string());
    }
    return names;
  }

  test::TempDir dir_;
  Engine engine_;
  QuantizeModelOptions options_;
  std::map<std::string, int> steps_;  // by stage
  std::vector<std::string> notes_;
  std::string stop_in_;
  int64_t stop_at_ = 0;
};

TEST_F(QuantizeModel, ErrorsNameFields) {
  const auto refused = [&](const std::function<void(QuantizeModelOptions&)>& change) {
    const QuantizeModelOptions before = options_;
    change(options_);
    const std::string error = test::error_of([&] { quantize_model(engine_, options_, {}); });
    options_ = before;
    return error;
  };
  EXPECT_THAT(refused([](auto& o) { o.format.reset(); }), HasSubstr("format: is needed"));
  EXPECT_THAT(refused([](auto& o) { o.recipe.emplace(); }), HasSubstr("format: and a recipe"));
  EXPECT_THAT(refused([](auto& o) {
                o.format.reset();
                o.recipe.emplace();
                o.budget.emplace();
              }),
              HasSubstr("budget: makes a recipe"));
  EXPECT_THAT(refused([](auto& o) { o.output.clear(); }), HasSubstr("output: is needed"));
  EXPECT_THAT(refused([](auto& o) { o.model.path = "/nowhere"; }),
              HasSubstr("model: there is no folder '/nowhere'"));
  EXPECT_THAT(refused([](auto& o) { o.exclude = {"*"}; }), HasSubstr("exclude: no linear"));
  EXPECT_THAT(refused([](auto& o) { o.include = {"\xFF"}; }), HasSubstr("include: '"));
  EXPECT_THAT(refused([](auto& o) { o.sampling.seed = UINT64_MAX; }), HasSubstr("seed: "));
  EXPECT_THAT(refused([](auto& o) {
                o.format = formats::fp8;
                o.dialect = Dialect::kComfyUI;
              }),
              HasSubstr("dialect: fp8 cannot be written for comfyui"));
  EXPECT_THAT(refused([](auto& o) {
                o.format = formats::nvfp4_16x16;
                o.rounding = Rounding::kCompensated;
              }),
              HasSubstr("rounding: nvfp4-16x16"));
  EXPECT_THAT(refused([](auto& o) { o.max_memory = -1; }), HasSubstr("max_memory: -1 is not"));
  EXPECT_THAT(refused([](auto& o) { o.search_points = -1; }), HasSubstr("search_points: -1 is"));
  EXPECT_THAT(refused([](auto& o) { o.certify = -1; }), HasSubstr("certify: -1 is not"));
  EXPECT_THAT(refused([](auto& o) { o.sampling.steps = 0; }), HasSubstr("steps: 0 is not"));
  EXPECT_THAT(refused([](auto& o) { o.sampling.guidance = NAN; }), HasSubstr("guidance: nan is"));
  EXPECT_THAT(refused([](auto& o) { o.sampling.size = std::pair(7, 16); }),
              HasSubstr("size: 7x16"));
  EXPECT_THAT(refused([](auto& o) { o.model.device = "tpu"; }), HasSubstr("device: 'tpu'"));
  EXPECT_THAT(refused([](auto& o) { o.model.threads = -2; }), HasSubstr("threads: -2 is not"));
  EXPECT_THAT(left(), ElementsAre());
  EXPECT_THAT(refused([](auto& o) { o.budget = {{}, 10, false}; }),
              HasSubstr("budget: 10 bytes are fewer"));
}

TEST_F(QuantizeModel, SeveralPassesGiveTheSameFiles) {
  options_.max_memory = int64_t{1} << 40;
  run("one");
  EXPECT_EQ(steps_.at("calibrating"), 9);  // three prompts of three steps
  options_.max_memory = 4 << 20;
  run("many");
  EXPECT_THAT(notes_, ElementsAre());
  int passes = 0;
  for (const auto& [stage, steps] : steps_) {
    if (!stage.starts_with("calibrating, pass ")) continue;
    ++passes;
    EXPECT_EQ(steps, 9) << stage;
    EXPECT_THAT(stage, HasSubstr(" of "));
  }
  EXPECT_GT(passes, 2);
  EXPECT_EQ(steps_.count("calibrating"), 0u);
  expect_same("one", "many");
  EXPECT_THAT(left(), ElementsAre());
}

TEST_F(QuantizeModel, SeveralPassesFindTheSameRecipe) {
  options_.budget = {0.99, {}, false};
  options_.max_memory = int64_t{1} << 40;
  run("one");
  options_.max_memory = 4 << 20;
  run("many");
  expect_same("one", "many");
}

TEST_F(QuantizeModel, MemoryForNotEvenOneInputIsSaidAndFailsWhenStrict) {
  options_.max_memory = 1 << 10;
  run("plain");
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_THAT(notes_[0], HasSubstr("fallback: weights are rounded to nearest, because"));
  options_.rounding = Rounding::kNearest;
  run("nearest");
  expect_same("plain", "nearest");
  options_.rounding.reset();
  options_.model.strict = true;
  EXPECT_THAT(test::error_of([&] { run("strict"); }), HasSubstr("strict: weights are rounded"));
}

TEST_F(QuantizeModel, ASearchGoesOnAndGivesTheSame) {
  options_.budget = {0.99, {}, false};
  run("whole");
  const int all = steps_.at("measuring layers");
  constexpr int kDone = 7;
  EXPECT_THAT(interrupted("again", "measuring layers", kDone),
              HasSubstr("interrupted; the next run goes on from '"));
  EXPECT_FALSE(fs::exists(dir_ / "again"));
  EXPECT_THAT(left(), ElementsAre("again.calibration.safetensors", "again.rounded-0.safetensors",
                                  "again.search.safetensors"));
  run("again");
  EXPECT_EQ(steps_.count("calibrating"), 0u);       // nothing is run twice
  EXPECT_EQ(steps_.count("rounding weights"), 0u);  //
  EXPECT_EQ(steps_.at("measuring layers"), all - kDone);
  EXPECT_THAT(notes_, ElementsAre());
  expect_same("whole", "again");
  EXPECT_THAT(left(), ElementsAre());
}

TEST_F(QuantizeModel, PassesThatWereDoneAreNotRunAgain) {
  options_.max_memory = 4 << 20;
  run("whole");
  const auto whole = steps_;
  interrupted("again", "calibrating, pass 3 of " + std::to_string(whole.size() - 2), 4);
  EXPECT_TRUE(left().contains("again.rounded-1.safetensors"));
  EXPECT_FALSE(left().contains("again.rounded-2.safetensors"));
  options_.max_memory = int64_t{1} << 40;  // the rest at once
  run("again");
  EXPECT_EQ(steps_.at("rounding weights") < whole.at("rounding weights"), true);
  expect_same("whole", "again");
  EXPECT_THAT(left(), ElementsAre());
}

TEST_F(QuantizeModel, WhatIsLeftOfSomethingElseIsSaidAndNotUsed) {
  options_.budget = {0.99, {}, false};
  run("whole");
  interrupted("again", "measuring layers", 7);
  std::ofstream(dir_ / "again.search.safetensors") << "something else";
  std::ofstream(dir_ / "again.rounded-0.safetensors") << "something else";
  run("again");
  ASSERT_EQ(notes_.size(), 3u);
  EXPECT_THAT(notes_[0], HasSubstr("its weights are rounded anew"));
  EXPECT_THAT(notes_[1], HasSubstr("calibration was begun anew"));
  EXPECT_THAT(notes_[2], HasSubstr("the search was begun anew"));
  expect_same("whole", "again");
}

TEST(SpreadPoints, PromptsAndSigmasTakeTurns) {
  std::vector<CalibrationPoint> points;
  for (int prompt = 2; prompt < 6; ++prompt) {
    for (const int step : {0, 4, 7}) points.push_back({prompt, step, {}, {}});
  }
  const auto chosen = [&](int most) {
    std::vector<std::pair<int, int>> found;
    for (const CalibrationPoint* p : spread_points(points, most)) {
      found.emplace_back(p->prompt, p->step);
    }
    return found;
  };
  EXPECT_EQ(chosen(0).size(), 12u);
  EXPECT_EQ(chosen(12), chosen(0));
  EXPECT_THAT(chosen(3), ElementsAre(std::pair(2, 0), std::pair(3, 4), std::pair(4, 7)));
  EXPECT_THAT(chosen(4),
              ElementsAre(std::pair(2, 0), std::pair(3, 4), std::pair(4, 7), std::pair(5, 0)));
  EXPECT_EQ(chosen(5).size(), 5u);
}

}  // namespace
}  // namespace halftone
