// Calibration of a tiny model: what it sees, that it is the same each time, and that it goes on
// after an interruption.
#include "halftone/quantize/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/quantize/search.h"
#include "tests/support/backend.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

class Calibrate : public testing::Test {
 protected:
  Calibrate() {
    const std::filesystem::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_plain.safetensors");
    const auto description = parse_json(fixture.metadata().at("case"), "fixture");
    test::write_zimage_folder(folder_.path(), description, data / "tokenizer" / "tokenizer.json");
    schedule_.flow = parse_flow_match_config(description["scheduler"], "fixture");
    options_.width = description["size"][0];
    options_.height = description["size"][1];
    options_.prompts = {"a red circle", "two blue squares", "nothing"};
    options_.steps = 3;
    options_.points_per_prompt = 2;
    options_.moments = true;
  }

  std::unique_ptr<Pipeline> load(bool compile = false) const {
    LoadOptions how;
    how.kernels = &test::tested_kernels();
    how.stream = test::tested_stream();
    how.compile = compile;
    return test::load_pipeline(folder_.path(), how);
  }
  Calibration run(const std::filesystem::path& partial = {},
                  const ProgressFn& progress = silent()) {
    return calibrate(*load(), schedule_, options_, partial, "me", progress);
  }
  static ProgressFn silent() {
    return [](const Progress&) {};
  }

  test::TempDir folder_, scratch_;
  CalibrationOptions options_;
  SchedulerConfig schedule_;
};

TEST_F(Calibrate, SeesEveryLinearAtEverySigma) {
  const Calibration c = run();
  const auto model = load();
  const auto linears = model->model().linears();
  ASSERT_EQ(c.inputs.size(), linears.size());
  for (const LinearInfo& linear : linears) {
    const InputRange& range = c.inputs.at(linear.weight);
    ASSERT_EQ(range.amax.size(), 3u);
    for (const float a : range.amax) EXPECT_GT(a, 0) << linear.weight;
    EXPECT_TRUE(range.finite());
    int64_t count = 0;
    for (const int64_t n : range.histogram) count += n;
    EXPECT_GT(count, 0);
    // The largest value is in the last bin that holds any.
    int last = 0;
    for (int i = 0; i < InputRange::kBins; ++i) {
      if (range.histogram[i] > 0) last = i;
    }
    EXPECT_EQ(std::ilogb(range.largest()), last - InputRange::kLowest) << linear.weight;
    ASSERT_NE(c.moments_of(linear.weight), nullptr);
    EXPECT_EQ(c.moments_of(linear.weight)->size(), linear.shape[1]);
  }
  EXPECT_EQ(c.points.size(), 6u);
  // q, k and v read the same.
  EXPECT_EQ(c.moments_of("layers.0.attention.to_q.weight"),
            c.moments_of("layers.0.attention.to_v.weight"));
  EXPECT_NE(calibration_json(c).find("layers.0.attention.to_q.weight"), std::string::npos);
}

TEST_F(Calibrate, MomentsWhereTheModelRunsAreThoseByHand) {
  constexpr int64_t kRows = 100, kWidth = 72;
  const auto x = test::gaussians(3, kRows * kWidth);
  InputMoments moments;
  InputMoments::Scratch scratch;
  for (int i = 0; i < 3; ++i) {
    moments.add({x.data(), DType::kF32, {kRows, kWidth}}, test::tested_kernels(),
                test::tested_stream(), scratch);
    if (i == 1) moments.flush(test::tested_kernels(), test::tested_stream(), scratch);
  }
  moments.flush(test::tested_kernels(), test::tested_stream(), scratch);
  for (int64_t i = 0; i < kWidth; ++i) {
    for (int64_t j = 0; j < kWidth; ++j) {
      double sum = 0;
      for (int64_t r = 0; r < kRows; ++r) sum += 3.0 * x[r * kWidth + i] * x[r * kWidth + j];
      ASSERT_NEAR(moments.sums()[i * kWidth + j], sum, 1e-3) << i << " " << j;
    }
  }
}

TEST_F(Calibrate, GoesOnAfterAnInterruptionAndGivesTheSame) {
  const Calibration whole = run();
  const auto partial = scratch_.path() / "partial.safetensors";
  int64_t predictions = 0;
  const auto stop_at = [&](int64_t limit) {
    return [&predictions, limit](const Progress& p) {
      if (p.done == limit) throw Error(ErrorCode::kCancelled, "test", "stopped");
      ++predictions;
    };
  };
  EXPECT_THROW(run(partial, stop_at(4)), Error);  // in the second prompt
  EXPECT_EQ(predictions, 4);
  predictions = 0;
  const Calibration resumed = run(partial, stop_at(-1));
  EXPECT_EQ(predictions, 6);  // the first prompt was not run again
  ASSERT_EQ(resumed.inputs.size(), whole.inputs.size());
  for (const auto& [weight, range] : whole.inputs) {
    EXPECT_EQ(resumed.inputs.at(weight).amax, range.amax) << weight;
    EXPECT_EQ(resumed.inputs.at(weight).histogram, range.histogram) << weight;
    EXPECT_EQ(resumed.moments_of(weight)->sums(), whole.moments_of(weight)->sums()) << weight;
  }
  ASSERT_EQ(resumed.points.size(), whole.points.size());
  for (size_t i = 0; i < whole.points.size(); ++i) {
    EXPECT_TRUE(
        std::ranges::equal(resumed.points[i].velocity.bytes(), whole.points[i].velocity.bytes()));
  }
  // Of other options nothing is taken over.
  options_.prompts[0] = "something else";
  predictions = 0;
  const Calibration other = calibrate(*load(), schedule_, options_, partial, "other", stop_at(-1));
  EXPECT_EQ(predictions, 9);
  EXPECT_NE(other.not_resumed.find("of other options or another model"), std::string::npos);
}

TEST_F(Calibrate, AFileThatIsDamagedIsSaidAndNotUsed) {
  const Calibration whole = run();
  EXPECT_EQ(whole.not_resumed, "");
  const auto partial = scratch_.path() / "partial.safetensors";
  std::ofstream(partial) << "not a file of tensors";
  const Calibration again = run(partial);
  EXPECT_NE(again.not_resumed.find("partial.safetensors"), std::string::npos);
  for (const auto& [weight, range] : whole.inputs) {
    EXPECT_EQ(again.inputs.at(weight).histogram, range.histogram) << weight;
  }
}

TEST_F(Calibrate, WhatIsHeldOutIsPredictedButNotWatched) {
  options_.prompts = {"a red circle", "two blue squares"};
  const Calibration alone = run();
  options_.held_out = {"nothing"};
  const auto partial = scratch_.path() / "partial.safetensors";
  int calls = 0;
  const auto stop_in_last = [&](const Progress& p) {
    if (p.done == 7) throw Error(ErrorCode::kCancelled, "test", "stopped");
    ++calls;
  };
  EXPECT_THROW(run(partial, stop_in_last), Error);
  EXPECT_EQ(calls, 7);
  for (const Calibration& c : {run(), run(partial)}) {
    EXPECT_EQ(c.not_resumed, "");
    for (const auto& [weight, range] : alone.inputs) {
      EXPECT_EQ(c.inputs.at(weight).histogram, range.histogram) << weight;
      EXPECT_EQ(c.moments_of(weight)->sums(), alone.moments_of(weight)->sums()) << weight;
    }
    ASSERT_EQ(c.points.size(), 2u);
    EXPECT_EQ(c.points[0].prompt, 2);
    ASSERT_EQ(c.conditions.size(), 3u);
    const auto model = load();
    EXPECT_GT(score_recipe(*model, model->model().denoiser().recipe(formats::fp8), {}, c).worst,
              0.9);
  }
}

TEST_F(Calibrate, ASearchKeepsItsBudgetAndPredictsWhatItMeasures) {
  HT_SKIP_WHERE_SANITIZED();
  const Calibration c = run();
  const auto model = load(true);
  const QuantizeRecipe plain = model->model().denoiser().recipe(formats::nvfp4);
  const double all = score_recipe(*model, plain, {}, c).mean;
  ASSERT_LT(all, 0.9995);
  const double target = 1 - (1 - all) / 4;
  const SearchInput input{*model,
                          c,
                          plain,
                          {{formats::nvfp4, true}, {formats::fp8, true}},
                          Minimize::kBytes,
                          {target, {}, false},
                          {}};
  const SearchResult r = search_formats(input, silent());
  EXPECT_TRUE(r.within_budget);
  EXPECT_GE(r.measured, target);
  EXPECT_GT(r.chosen.bytes, r.curve.front().bytes);
  EXPECT_LT(r.chosen.bytes, r.curve.back().bytes);
  EXPECT_DOUBLE_EQ(r.curve.back().cosine, 1);
  const QuantizeRecipe recipe = recipe_of(plain, r, r.chosen.choice);
  EXPECT_DOUBLE_EQ(score_recipe(*model, recipe, {}, c).mean, r.measured);
  // The least bytes that there are, and fewer.
  SearchInput by_bytes = input;
  by_bytes.budget = {{}, r.curve.front().bytes, false};
  EXPECT_EQ(search_formats(by_bytes, silent()).chosen.bytes, r.curve.front().bytes);
  by_bytes.budget = {{}, 10, false};
  EXPECT_THROW(search_formats(by_bytes, silent()), Error);
  // For more, from what was measured.
  SearchResult tighter = r;
  const double higher = 1 - (1 - r.measured) / 2;
  ASSERT_TRUE(choose_again(input, higher, tighter));
  EXPECT_GE(tighter.measured, higher);
  EXPECT_GT(tighter.chosen.bytes, r.chosen.bytes);
  EXPECT_FALSE(choose_again(input, 1.0, tighter));  // only high precision is that good
  EXPECT_GE(tighter.measured, higher);
}

}  // namespace
}  // namespace halftone
