// Quantizing and comparing, shown on a tiny model of every family.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "halftone/engine/job.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/quantize/compare_model.h"
#include "halftone/quantize/quantize_model.h"
#include "tests/support/errors.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
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

  // How far a model with an adapter of a linear that it has in parts is from the original with it,
  // relative to what the adapter does.
  double adapter_on(const std::string& model, const std::string& weight) {
    const auto predict = [&](const std::string& of, const std::string& precision, float strength) {
      ModelSpec spec = options_.model;
      spec.path = (dir_ / of).string();
      spec.precision = precision;
      const LoadedModel loaded = engine_.load(spec);
      EXPECT_THAT(adapter_sites_of(*loaded.model), testing::Contains(weight));
      const Shape shape = shape_of(loaded.model->originals().contains(weight)
                                       ? loaded.model->originals().at(weight)
                                       : Weight(Tensor::zeros(DType::kF32, {1, 1})));
      if (shape[0] > 1) {
        const std::string module = "transformer." + weight.substr(0, weight.rfind('.'));
        write_safetensors(
            dir_ / "lora.safetensors",
            {{module + ".lora_A.weight", test::procedural_weight("a", {4, shape[1]})},
             {module + ".lora_B.weight", test::procedural_weight("b", {shape[0], 4})}});
      }
      const auto adapter = loaded.model->load_adapter((dir_ / "lora.safetensors").string());
      EXPECT_EQ(adapter->lora().modules().size(), 1u);
      loaded.pipeline->set_adapters({{adapter, strength}});
      const Shape latents = loaded.model->latent_shape(GetParam().width, GetParam().height);
      const Schedule schedule = make_schedule(loaded.sampling.scheduler, 2, 64);
      return floats(loaded.pipeline->predict(seeded_noise(latents, 1), schedule.steps[0],
                                             loaded.pipeline->encode("two dogs")));
    };
    const auto exact = predict("model", "fp32", 8), without = predict("model", "fp32", 0);
    const auto split = predict(model, "stored", 8);
    return relative_error(split, exact) / std::max(1e-6, relative_error(exact, without));
  }
  static std::vector<std::string> adapter_sites_of(const Model& model) {
    std::vector<std::string> names;
    for (const LinearInfo& linear : model.whole_linears()) names.push_back(linear.weight);
    return names;
  }

  test::TempDir dir_;
  Engine engine_;
  QuantizeModelOptions options_;
};
INSTANTIATE_TEST_SUITE_P(, QuantizeEveryFamily, testing::ValuesIn(test::few_tiny_models()),
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

// What a search has found is written down with all that it follows from.
TEST_P(QuantizeEveryFamily, ARecipeDoesTheSameAgain) {
#ifndef HALFTONE_TOML
  GTEST_SKIP() << "this build has no toml++";
#endif
  options_.calibrate = true;
  options_.budget = {0.98, {}, false};
  options_.search_points = 2;
  options_.format = formats::nvfp4;
  quantize("out");
  const std::filesystem::path recipe = dir_ / "out" / "recipe.toml";
  options_.recipe = read_recipe(recipe);
  options_.format.reset();
  options_.budget.reset();
  options_.calibrate = false;
  options_.prompts.clear();
  quantize("again");
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "out")) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto other = dir_ / "again" / std::filesystem::relative(entry.path(), dir_ / "out");
    EXPECT_TRUE(test::read_file(entry.path()) == test::read_file(other)) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 1);
}

// Products of values side by side, made one by one: what is written loads again, gives the bits
// that a model has which is cut on loading, and takes adapters of whole linears.
TEST_P(QuantizeEveryFamily, InputsAreSplitWhereTheFamilyPutsValuesSideBySide) {
  options_.split_inputs = SplitInputs::kOn;
  ModelSpec spec = options_.model;
  spec.precision = "fp32";
  const InputCuts can = engine_.load(spec).model->cuttable();
  if (can.empty()) {
    EXPECT_THAT(test::error_of([&] { quantize("none"); }),
                HasSubstr("split_inputs: no linear of "));
    return;
  }
  for (const Format& format : {formats::fp8, formats::fp8_tensor}) {
    const std::string name(format.name);
    options_.format = format;
    options_.split_inputs = SplitInputs::kOn;
    const ModelQuantizeResult result = quantize("split-" + name);
    EXPECT_EQ(result.cuts.size(), can.size());
    const auto stored = latents("split-" + name, "stored");
    options_.model.cut_inputs = {"*"};
    EXPECT_EQ(stored, latents("model", name));
    options_.model.cut_inputs.clear();
    EXPECT_NE(stored, latents("model", name));
    // A weight that is selected by its whole name is selected in parts.
    options_.include = {can.begin()->first};
    EXPECT_EQ(quantize("one-" + name).files.converted.size(), can.begin()->second.size());
    options_.include.clear();
    EXPECT_LT(relative_error(stored, latents("model", "fp32")), 0.5);
    EXPECT_LE(adapter_on("split-" + name, can.begin()->first), 0.5);
    // The recipe does it again, and other dialects have no names for it.
    options_.split_inputs = SplitInputs::kOff;
    options_.format.reset();
    options_.recipe = read_recipe(dir_ / ("split-" + name) / "recipe.toml");
    EXPECT_EQ(options_.recipe->cuts, result.cuts);
    quantize("again-" + name);
    EXPECT_EQ(latents("again-" + name, "stored"), stored);
    // A rule that would do nothing: for the whole of what is in parts, or for nothing at all.
    for (const std::string& wrong : {can.begin()->first, std::string("nonsense")}) {
      options_.recipe->recipe.rules.push_back({wrong, formats::mxfp8, true});
      EXPECT_THAT(test::error_of([&] { quantize("wrong-" + name); }),
                  HasSubstr(fmt::format("[[layer]] '{}' matches no linear", wrong)));
      options_.recipe->recipe.rules.pop_back();
    }
    options_.dialect = Dialect::kComfyUI;
    EXPECT_THAT(test::error_of([&] { quantize("comfy"); }),
                HasSubstr("weights in two parts cannot be written for comfyui"));
    options_.dialect = Dialect::kHalftone;
    options_.recipe.reset();
  }
}

TEST_P(QuantizeEveryFamily, SplittingIsMeasured) {
  options_.format = formats::fp8_tensor;
  options_.split_inputs = SplitInputs::kAuto;
  EXPECT_THAT(test::error_of([&] { quantize("none"); }), HasSubstr("auto is for a search"));
  options_.budget = {0.97, {}, false};
  options_.search_points = 2;
  options_.calibrate = true;
  ModelSpec spec = options_.model;
  const InputCuts can = engine_.load(spec).model->cuttable();
  if (can.empty()) return;
  const ModelQuantizeResult result = quantize("auto");
  EXPECT_LE(result.cuts.size(), can.size());
  for (const std::string& weight : result.cuts) EXPECT_TRUE(can.contains(weight)) << weight;
  // Groups of the search are the parts of what is cut.
  size_t parts = 0;
  for (const SearchGroup& group : result.found->groups) {
    parts += static_cast<size_t>(std::ranges::count_if(
        group.weights, [](const std::string& w) { return w.find(".in0.weight") != w.npos; }));
  }
  EXPECT_EQ(parts, result.cuts.size());
  EXPECT_LT(relative_error(latents("auto", "stored"), latents("model", "fp32")), 0.5);
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
