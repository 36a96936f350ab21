// Comparing a model with itself, with a disturbed copy and with a quantized one.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/quantize/parity_report.h"
#include "tests/support/backend.h"
#include "tests/support/errors.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

TEST(Spread, KnowsWhichSideIsWorse) {
  std::vector<double> values;
  for (int i = 1; i <= 100; ++i) values.push_back(i);
  const Spread small = Spread::of(values, Spread::Worse::kSmaller);
  const Spread large = Spread::of(values, Spread::Worse::kLarger);
  EXPECT_DOUBLE_EQ(small.mean, 50.5);
  EXPECT_EQ(small.median, 51);
  EXPECT_EQ(small.worst, 1);
  EXPECT_EQ(small.tail, 6);
  EXPECT_EQ(large.worst, 100);
  EXPECT_EQ(large.tail, 95);
}

class Parity : public testing::Test {
 protected:
  Parity() {
    const std::filesystem::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_plain.safetensors");
    const auto description = parse_json(fixture.metadata().at("case"), "fixture");
    test::write_zimage_folder(folder_.path(), description, data / "tokenizer" / "tokenizer.json");
    schedule_.flow = parse_flow_match_config(description["scheduler"], "fixture");
    options_.width = description["size"][0];
    options_.height = description["size"][1];
    options_.prompts = {"a red circle", "two <b>blue</b> squares"};
    options_.seeds = 2;
    options_.steps = 3;
  }

  std::unique_ptr<Pipeline> load(const std::optional<Format>& format) const {
    LoadOptions how;
    how.activations = DType::kBF16;
    how.format = format;
    how.kernels = &test::tested_kernels();
    how.stream = test::tested_stream();
    return test::load_pipeline(folder_.path(), how);
  }

  test::TempDir folder_;
  ParityOptions options_;
  SchedulerConfig schedule_;
  int64_t counted_ = 0;
  const ProgressFn progress_ = [this](const Progress& p) {
    EXPECT_LT(p.done, p.total);
    ++counted_;
  };
};

TEST_F(Parity, AModelEqualsItselfAndQuantizingAndDisturbingShow) {
  const auto reference = load({});
  const ReferenceRun run = run_reference(*reference, schedule_, options_, progress_);
  EXPECT_EQ(counted_, reference_predictions(options_));
  ASSERT_EQ(run.cases.size(), 4u);
  ASSERT_EQ(run.cases[0].latents.size(), 4u);

  counted_ = 0;
  const ParityResult same = compare_with(run, *reference, options_, {}, progress_);
  EXPECT_EQ(counted_, compared_predictions(options_));
  EXPECT_EQ(same.velocity_error_all.worst, 0);
  EXPECT_NEAR(same.rollout_cosine.back().worst, 1, 1e-12);
  EXPECT_EQ(same.ssim.worst, 1);
  ASSERT_FALSE(same.layer_error.empty());
  for (const auto& [name, error] : same.layer_error) EXPECT_EQ(error, 0) << name;

  const ParityResult floor = compare_with(run, *reference, options_, {1e-3}, progress_);
  EXPECT_GT(floor.velocity_error_all.mean, 1e-5);
  EXPECT_LT(floor.velocity_error_all.mean, 1e-1);

  const auto nvfp4 = load(formats::nvfp4), fp8 = load(formats::fp8);
  const ParityResult four = compare_with(run, *nvfp4, options_, {}, progress_);
  const ParityResult eight = compare_with(run, *fp8, options_, {}, progress_);
  EXPECT_GT(eight.velocity_error_all.mean, 5e-3);
  EXPECT_GT(four.velocity_error_all.mean, 2 * eight.velocity_error_all.mean);
  EXPECT_LT(four.velocity_cosine_all.mean, eight.velocity_cosine_all.mean);
  // A small step hides what a velocity shows.
  EXPECT_LT(1 - four.step_cosine[0].mean, 1 - four.velocity_cosine[0].mean);
  EXPECT_EQ(four.layer_error.size(), same.layer_error.size());
  EXPECT_GT(four.layer_error.back().second, 0);
  for (const auto& c : four.cases) EXPECT_LE(four.velocity_cosine_all.worst, c.velocity_cosine);
}

TEST_F(Parity, TheReportHoldsEverythingAndThePageNeedsNothingElse) {
  options_.seeds = 1;
  const auto reference = load({}), fp8 = load(formats::fp8);
  ParityReport report;
  report.model = "models/tiny";
  report.reference = "bf16";
  report.options = options_;
  report.run = run_reference(*reference, schedule_, options_, progress_);
  for (const char* name : {"fp8", "floor"}) {
    const bool floor = std::string(name) == "floor";
    ParityResult result = compare_with(report.run, floor ? *reference : *fp8, options_,
                                       {floor ? 1e-3 : 0}, progress_);
    result.name = name;
    report.results.push_back(std::move(result));
  }
  const auto json = parity_json(report);
  EXPECT_EQ(json["results"].size(), 2u);
  EXPECT_EQ(json["results"][0]["velocity_cosine_by_step"].size(), 3u);
  EXPECT_EQ(json["results"][0]["cases"].size(), 2u);
  EXPECT_FALSE(json["results"][0]["layer_relative_error"].empty());
  EXPECT_EQ(nlohmann::ordered_json::parse(json.dump()), json);

  const std::string page = parity_page(report);
  EXPECT_NE(page.find("<title>tiny: precisions compared</title>"), std::string::npos);
  EXPECT_NE(page.find("two &lt;b&gt;blue&lt;/b&gt; squares"), std::string::npos);
  EXPECT_EQ(page.find("<b>blue"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos) << "nothing from elsewhere";
  EXPECT_EQ(page.find("nan"), std::string::npos);
  const auto count = [&](const std::string& what) {
    int found = 0;
    for (size_t at = page.find(what); at != std::string::npos; at = page.find(what, at + 1))
      ++found;
    return found;
  };
  EXPECT_EQ(count("<svg"), 4);
  EXPECT_EQ(count("data:image/png;base64,"), 4);  // two pairs
}

// Text states of one would not fit the other.
TEST_F(Parity, AnotherModelIsRefused) {
  const auto reference = load({});
  const ReferenceRun run = run_reference(*reference, schedule_, options_, progress_);
  const test::TempDir other;
  const std::filesystem::path data = HALFTONE_TEST_DATA;
  test::write_zimage_folder(other.path(), test::one_layer_zimage(),
                            data / "tokenizer" / "tokenizer.json");
  LoadOptions how = reference->model().options();
  how.format = {};
  const auto different = test::load_pipeline(other.path(), how);
  ASSERT_NE(different->model().denoiser().text_features(),
            reference->model().denoiser().text_features());
  EXPECT_EQ(test::error_of([&] {
              compare_with(run, *different, options_, {}, progress_);
            }).find("precision: is a folder of another model: text states of"),
            0u);
}

}  // namespace
}  // namespace halftone
