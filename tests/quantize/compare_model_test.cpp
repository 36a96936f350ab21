// Comparing precisions as a library call: fields in Errors, rows and progress, and what is counted
// and refused.
#include "halftone/quantize/compare_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/quantize/prompt_sets.h"
#include "halftone/quantize/quantize_model.h"
#include "tests/support/errors.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class CompareModel : public testing::Test {
 protected:
  CompareModel() {
    const std::filesystem::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_guided.safetensors");
    test::write_zimage_folder(dir_ / "model", parse_json(fixture.metadata().at("case"), "fixture"),
                              data / "tokenizer" / "tokenizer.json");
    options_.model.path = (dir_ / "model").string();
    options_.model.device = "cpu";
    options_.model.threads = 2;
    options_.precisions = {"nvfp4", "fp8"};
    options_.reference = "fp32";
    options_.parity.prompts = {"a red circle", "two squares"};
    options_.parity.width = 24;
    options_.parity.height = 16;
    options_.parity.steps = 2;
  }

  ParityReport run() {
    counted_.clear();
    return compare_model(engine_, options_, [this](const Progress& p) {
      counted_.push_back(p.done);
      total_ = p.total;
    });
  }
  std::string refused(const std::function<void(CompareModelOptions&)>& change) {
    const CompareModelOptions before = options_;
    change(options_);
    const std::string error = test::error_of([&] { run(); });
    options_ = before;
    return error;
  }

  test::TempDir dir_;
  Engine engine_;
  CompareModelOptions options_;
  std::vector<int64_t> counted_;
  int64_t total_ = 0;
};

TEST_F(CompareModel, AStepCacheIsMeasuredLikeAPrecision) {
  options_.precisions = {};
  options_.caches = {0.001f, 1};
  options_.parity.steps = 6;
  options_.parity.guidance = 3;
  const ParityReport report = run();
  EXPECT_EQ(counted_.back() + 1, total_);
  ASSERT_EQ(report.results.size(), 3u);
  const ParityResult &hardly = report.results[0], &much = report.results[1];
  EXPECT_EQ(hardly.name, "cache 0.001");
  EXPECT_EQ(hardly.reused_share, 0);
  EXPECT_EQ(hardly.velocity_error_all.worst, 0);
  EXPECT_EQ(hardly.ssim.worst, 1);
  EXPECT_EQ(much.name, "cache 1");
  EXPECT_THAT(much.how, testing::ContainsRegex("fp32, [1-6][0-9]% of the steps reused"));
  const std::vector<int>& reused = much.cases[0].reused;
  ASSERT_FALSE(reused.empty());
  EXPECT_EQ(reused[0], 2);
  EXPECT_LE(reused.back(), 5);
  EXPECT_GT(much.velocity_error[1].mean, 1e-4);
  EXPECT_EQ(much.velocity_error[0].mean, 0);  // the first and the last are computed
  EXPECT_EQ(much.velocity_error[5].mean, 0);
  EXPECT_LT(much.ssim.worst, 1);
  const auto json = parity_json(report);
  EXPECT_EQ(json["results"][1]["cases"][0]["reused_steps"], nlohmann::json(reused));
  EXPECT_FALSE(json["results"][2].contains("cache"));
  EXPECT_THAT(parity_page(report), HasSubstr("steps that reuse: " + steps_text(reused)));
  EXPECT_THAT(refused([](auto& o) { o.caches = {0}; }), StartsWith("cache: 0 is not above 0"));
  EXPECT_THAT(refused([](auto& o) { o.caches = {NAN}; }), StartsWith("cache: nan is not above 0"));
}

TEST_F(CompareModel, ARowForEachPrecisionAndTheFloorLast) {
  options_.parity.guidance = 3;
  const ParityReport report = run();
  std::vector<std::string> names;
  for (const ParityResult& r : report.results) names.push_back(r.name);
  EXPECT_THAT(names, ElementsAre("nvfp4", "fp8", "floor"));
  EXPECT_EQ(report.reference, "fp32");
  EXPECT_EQ(report.device, "cpu");
  EXPECT_EQ(report.model, options_.model.path);
  EXPECT_FALSE(report.hash.empty() || report.version.empty());
  EXPECT_THAT(report.results[0].how, HasSubstr("emulated"));
  EXPECT_LT(report.results[0].weight_bytes, report.results[1].weight_bytes);
  EXPECT_EQ(report.run.cases.size(), 2u);

  // Every prediction once: two prompts of two steps, and both ways of comparing for three rows.
  ASSERT_EQ(total_, 2 * 2 * (1 + 2 * 3));
  ASSERT_EQ(static_cast<int64_t>(counted_.size()), total_);
  for (size_t i = 0; i < counted_.size(); ++i) EXPECT_EQ(counted_[i], static_cast<int64_t>(i));

  // The same by hand.
  ModelSpec spec = options_.model;
  spec.precision = "fp32";
  const LoadedModel reference = engine_.load(spec);
  spec.precision = "fp8";
  const LoadedModel fp8 = engine_.load(spec);
  const ReferenceRun same = run_reference(*reference.pipeline, reference.sampling.scheduler,
                                          options_.parity, test::silent);
  const ParityResult row = compare_with(same, *fp8.pipeline, options_.parity, {}, test::silent);
  EXPECT_EQ(report.results[1].velocity_cosine_all.mean, row.velocity_cosine_all.mean);
  EXPECT_EQ(report.results[1].rollout_cosine.back().worst, row.rollout_cosine.back().worst);
  const ParityResult floor = compare_with(same, *reference.pipeline, options_.parity,
                                          {options_.parity.disturbance}, test::silent);
  EXPECT_EQ(report.results[2].velocity_error_all.mean, floor.velocity_error_all.mean);
  EXPECT_GT(floor.velocity_error_all.mean, 0);
}

// The certificate of an encoder's precision: its states, and pictures that follow from nothing
// else.
TEST_F(CompareModel, TextPrecisionsAreComparedBesideTheReferencesDenoiser) {
  options_.precisions.clear();
  options_.text_precisions = {"fp32", "fp8", "nvfp4"};
  const ParityReport report = run();
  ASSERT_EQ(report.results.size(), 4u);
  std::vector<double> cosines, latents;
  for (size_t i = 0; i < 3; ++i) {
    const ParityResult& row = report.results[i];
    EXPECT_EQ(row.name, "text " + options_.text_precisions[i]);
    EXPECT_TRUE(row.of_text);
    EXPECT_EQ(row.velocity_cosine_all.worst, report.results[0].velocity_cosine_all.worst);
    ASSERT_EQ(row.texts.size(), 1u);
    EXPECT_EQ(row.texts[0].encoder, "text_encoder");
    EXPECT_EQ(row.texts[0].output, "states");
    EXPECT_LE(row.texts[0].cosine.worst, row.texts[0].cosine.mean);
    cosines.push_back(row.texts[0].cosine.mean);
    latents.push_back(row.rollout_cosine.back().mean);
  }
  EXPECT_NEAR(cosines[0], 1, 1e-9);
  EXPECT_NEAR(report.results[0].ssim.mean, 1, 1e-9);
  EXPECT_LT(cosines[1], 1 - 1e-6);
  EXPECT_LT(cosines[2], cosines[1]);
  EXPECT_GT(cosines[2], 0.9);
  EXPECT_LT(latents[1], 1);
  EXPECT_LT(report.results[1].ssim.mean, 1);
  EXPECT_TRUE(report.results[3].texts.empty());  // the floor's are the reference's

  // The same by hand: a prompt's states, token by token.
  ModelSpec spec = options_.model;
  spec.precision = "fp32";
  const LoadedModel exact = engine_.load(spec);
  spec.text_precision = "fp8";
  const LoadedModel rounded = engine_.load(spec);
  double sum = 0;
  int64_t count = 0;
  for (const std::string& prompt : options_.parity.prompts) {
    const Tensor a = exact.pipeline->encode(prompt).at("text");
    const Tensor b = rounded.pipeline->encode(prompt).at("text");
    const auto width = static_cast<size_t>(a.shape()[1]);
    for (int64_t t = 0; t < a.shape()[0]; ++t, ++count) {
      double ab = 0, aa = 0, bb = 0;
      for (size_t i = static_cast<size_t>(t) * width; i < static_cast<size_t>(t + 1) * width; ++i) {
        const double x = a.as<float>()[i], y = b.as<float>()[i];
        ab += x * y, aa += x * x, bb += y * y;
      }
      sum += ab / std::sqrt(aa * bb);
    }
  }
  EXPECT_NEAR(cosines[1], sum / static_cast<double>(count), 1e-9);
  EXPECT_THAT(parity_page(report), HasSubstr("What text encoders give"));
  EXPECT_EQ(parity_json(report)["results"][1]["text_states"][0]["cosine"]["mean"], cosines[1]);
}

TEST_F(CompareModel, WhatIsNotGivenIsTheModels) {
  test::write_file(dir_ / "model" / "halftone.json",
                   R"({"width": 24, "height": 16, "steps": 3, "guidance": 2.5})");
  options_.precisions = {"fp8"};
  options_.parity = CompareModelOptions().parity;
  options_.parity.prompts = {"a line"};
  const auto taken = [&] {
    const ParityOptions how = compare_model(engine_, options_, {}).options;
    return std::tuple(how.width, how.height, how.steps, how.guidance);
  };
  EXPECT_EQ(taken(), std::tuple(24, 16, 3, 2.5f));
  options_.parity.height = 24;
  options_.parity.guidance = 0;  // off
  EXPECT_EQ(taken(), std::tuple(24, 24, 3, 0.0f));
}

TEST_F(CompareModel, WithoutPromptsTheyAreThoseOfTheCertificate) {
  options_.precisions = {"fp8"};
  options_.parity.prompts.clear();
  options_.parity.steps = 1;
  const ParityReport report = run();
  EXPECT_EQ(report.options.prompts, usual_prompt_sets().certificate);
  EXPECT_EQ(report.run.cases.size(), report.options.prompts.size());
}

TEST_F(CompareModel, AFolderIsComparedAsItIsStored) {
  QuantizeModelOptions quantize;
  quantize.model = options_.model;
  quantize.format = formats::fp8;
  quantize.output = dir_ / "small";
  quantize_model(engine_, quantize, {});
  options_.precisions = {(dir_ / "small").string(), "fp8"};
  const ParityReport report = run();
  ASSERT_EQ(report.results.size(), 3u);
  EXPECT_EQ(report.results[0].name, "small");
  EXPECT_EQ(report.results[0].velocity_cosine_all.mean, report.results[1].velocity_cosine_all.mean);
}

TEST_F(CompareModel, ErrorsNameFields) {
  EXPECT_EQ(
      refused([](auto& o) { o.precisions.push_back("fp3"); }),
      "precisions: 'fp3' is neither a precision such as fp8 nor a folder of a quantized model");
  EXPECT_THAT(refused([](auto& o) { o.precisions = {"auto"}; }), StartsWith("precisions: 'auto'"));
  EXPECT_EQ(refused([](auto& o) { o.precisions.clear(); }), "precisions: none are given");
  EXPECT_EQ(refused([](auto& o) { o.text_precisions = {"fp3"}; }),
            "text_precisions: 'fp3' is no precision such as fp8");
  EXPECT_THAT(refused([](auto& o) { o.reference = "best"; }), StartsWith("reference: 'best' is"));
  EXPECT_THAT(refused([](auto& o) { o.parity.seeds = 0; }), StartsWith("seeds: 0 is not"));
  EXPECT_THAT(refused([](auto& o) { o.parity.width = -8; }), StartsWith("width: -8 is not"));
  EXPECT_THAT(refused([](auto& o) { o.parity.height = 1 << 20; }), StartsWith("height: "));
  EXPECT_THAT(refused([](auto& o) { o.parity.steps = 1001; }), StartsWith("steps: 1001 is"));
  EXPECT_THAT(refused([](auto& o) { o.parity.guidance = NAN; }), StartsWith("guidance: nan is"));
  EXPECT_THAT(refused([](auto& o) { o.parity.disturbance = NAN; }), StartsWith("disturbance: "));
  EXPECT_THAT(refused([](auto& o) { o.max_memory = -1; }), StartsWith("max_memory: -1 is"));
  EXPECT_THAT(refused([](auto& o) { o.model.device = "tpu"; }), StartsWith("device: 'tpu'"));
  EXPECT_THAT(refused([](auto& o) { o.model.path = "/nowhere"; }), StartsWith("/nowhere: "));
  EXPECT_THAT(refused([](auto& o) { o.scheduler = "ddim"; }), StartsWith("scheduler: ddim is not"));
  EXPECT_THAT(refused([](auto& o) { o.parity.width = 7; }), StartsWith("size: 7x16"));
  EXPECT_THAT(refused([](auto& o) { o.parity.prompts = {"\xFF"}; }), StartsWith("prompts: '"));
  EXPECT_THAT(refused([](auto& o) { o.max_memory = 1000; }), StartsWith("max_memory: "));
  EXPECT_EQ(counted_.size(), 0u);
  EXPECT_EQ(refused([&](auto& o) { o.reference = o.model.path; }),
            "reference: stored: the weights are not quantized");
  EXPECT_EQ(refused([&](auto& o) { o.precisions = {o.model.path}; }),
            "precisions: stored: the weights are not quantized");
}

TEST_F(CompareModel, IsCancelledFromEitherSide) {
  int64_t last = -1;
  const auto stop_at = [&](int64_t at) {
    return test::error_of([&] {
      compare_model(engine_, options_, [&](const Progress& p) {
        last = p.done;
        if (p.done == at) throw Error(ErrorCode::kCancelled, "", "interrupted");
      });
    });
  };
  for (const int64_t at : {0, 3, 4, 13}) {  // in the reference, at its end, the floor and a row
    EXPECT_EQ(stop_at(at), "interrupted");
    EXPECT_EQ(last, at);
  }
  options_.model.cancelled = [] { return true; };
  EXPECT_THAT(test::error_of([&] { run(); }), HasSubstr("interrupted"));
  EXPECT_LE(counted_.size(), 1u);
}

// On a machine with a GPU nothing falls back.
TEST_F(CompareModel, FallbacksAreRecordedOnceAndFailWhenStrict) {
  options_.model.device = "cuda";
  const std::string why = "cpu instead of cuda";
  if (engine_.load(options_.model).device.used != "cpu") GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(run().fallbacks, ElementsAre(StartsWith(why)));
  options_.model.strict = true;
  EXPECT_THAT(test::error_of([&] { run(); }), StartsWith("strict: " + why));
}

}  // namespace
}  // namespace halftone
