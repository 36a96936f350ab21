// Quantizing and comparing, shown on a tiny model of every family.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "halftone/engine/job.h"
#include "halftone/quantize/compare_model.h"
#include "halftone/quantize/quantize_model.h"
#include "tests/support/errors.h"
#include "tests/support/run_graph.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

using test::floats;
using test::relative_error;
using testing::ElementsAre;
using testing::HasSubstr;

class QuantizeEveryFamily : public testing::TestWithParam<test::TinyModel> {
 protected:
  QuantizeEveryFamily() {
    GetParam().write(dir_ / "model");
    options_.model.path = (dir_ / "model").string();
    options_.model.device = "cpu";
    options_.model.threads = 1;
    options_.sampling.size = std::pair(GetParam().width, GetParam().height);
    options_.sampling.steps = 2;
    options_.prompts = {"a red circle", "two squares", "a line"};
    options_.format = formats::fp8;
    options_.certify = 0;
  }

  ModelQuantizeResult quantize(const std::string& output) {
    options_.output = dir_ / output;
    return quantize_model(engine_, options_, {});
  }
  // Latents of a picture that this model makes, quantized as it is stored.
  std::vector<float> latents(const std::string& model, const std::string& precision) {
    ModelSpec spec = options_.model;
    spec.path = (dir_ / model).string();
    spec.precision = precision;
    const LoadedModel loaded = engine_.load(spec);
    EXPECT_THAT(loaded.fallbacks, ElementsAre());
    JobRequest r = loaded.request("two dogs");
    r.width = GetParam().width;
    r.height = GetParam().height;
    r.steps = 2;
    r.seed = 3;
    Stepper stepper(*loaded.pipeline);
    Job job = stepper.start(r);
    Job* const one[] = {&job};
    while (!job.done()) stepper.step(one);
    return floats(stepper.latents(job));
  }

  test::TempDir dir_;
  Engine engine_;
  QuantizeModelOptions options_;
};
// Sanitizers find in one family what they would find in the next.
std::vector<test::TinyModel> quantized_families() {
  std::vector<test::TinyModel> all = test::tiny_models();
  if (test::kSanitized) all.erase(all.begin(), all.end() - 1);
  return all;
}
INSTANTIATE_TEST_SUITE_P(, QuantizeEveryFamily, testing::ValuesIn(quantized_families()),
                         [](const auto& tested) {
                           std::string name = tested.param.family;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

// Weights that are rounded to nearest are those that the model rounds itself when it is loaded.
TEST_P(QuantizeEveryFamily, AFolderRunsAsTheModelDoesInThatPrecision) {
  for (const Format& format : {formats::fp8, formats::mxfp8, formats::nvfp4}) {
    const std::string name(format.name);
    options_.format = format;
    const ModelQuantizeResult result = quantize(name);
    EXPECT_GT(result.files.converted.size(), 1u) << name;
    const auto stored = latents(name, "stored");
    EXPECT_EQ(stored, latents("model", name)) << name;
    EXPECT_GT(relative_error(stored, latents("model", "fp32")), 1e-4) << name;
  }
}

TEST_P(QuantizeEveryFamily, CalibratesSearchesAndCertifies) {
  options_.calibrate = true;
  options_.budget = {0.98, {}, false};
  options_.search_points = 2;
  options_.format = formats::nvfp4;
  options_.certify = 1;
  const ModelQuantizeResult result = quantize("out");
  EXPECT_THAT(result.not_finite, ElementsAre());
  ASSERT_TRUE(result.found.has_value());
  EXPECT_GT(result.points, 1u);
  // Formats are the search's, and every one of its groups has one.
  EXPECT_EQ(result.found->chosen.choice.size(), result.found->groups.size());
  EXPECT_GT(result.found->curve.back().bytes, result.found->curve.front().bytes);
  ASSERT_TRUE(result.budget.has_value());
  EXPECT_GT(result.budget->reached, 0.9);
  ASSERT_TRUE(result.certificate.has_value()) << result.uncertified;

  CompareModelOptions compare;
  compare.model = options_.model;
  compare.precisions = {(dir_ / "out").string(), "fp8"};
  compare.reference = "fp32";
  compare.parity.prompts = {"a blue dot"};
  compare.parity.width = GetParam().width;
  compare.parity.height = GetParam().height;
  compare.parity.steps = 2;
  const ParityReport report = compare_model(engine_, compare, {});
  ASSERT_EQ(report.results.size(), 3u);
  for (const ParityResult& row : report.results) {
    EXPECT_GT(row.velocity_cosine_all.mean, 0.85) << row.name;
    EXPECT_LT(row.velocity_cosine_all.mean, 1) << row.name;
  }
}

// What other tools read gives the same bits back.
TEST_P(QuantizeEveryFamily, DialectsHoldTheSameModel) {
  options_.format = formats::fp8_tensor;
  quantize("own");
  const auto own = latents("own", "stored");
  for (const Dialect dialect : {Dialect::kComfyUI, Dialect::kModelOpt}) {
    options_.dialect = dialect;
    const std::string name(to_string(dialect));
    quantize(name);
    EXPECT_EQ(latents(name, "stored"), own) << name;
  }
}

}  // namespace
}  // namespace halftone
