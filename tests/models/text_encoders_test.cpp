// Text encoders that families share, CLIP's and T5's, against transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/clip_text/text_encoder.h"
#include "halftone/models/t5/names.h"
#include "halftone/models/t5/text_encoder.h"
#include "tests/support/backend.h"
#include "tests/support/data.h"
#include "tests/support/errors.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::floats;
using test::relative_error;
using Prompts = std::vector<std::vector<int32_t>>;

struct Fixture {
  explicit Fixture(const std::string& name)
      : file(test::kData / "text_encoders" / (name + ".safetensors")),
        json(parse_json(file.metadata().at("case"), "fixture")),
        prompts(json["prompts"].get<Prompts>()),
        tokens(json["tokens"]),
        batch(static_cast<int64_t>(prompts.size())) {}

  std::vector<float> expected(const std::string& name) const { return floats(file.tensor(name)); }

  SafetensorsFile file;
  nlohmann::json json;
  Prompts prompts;
  int64_t tokens, batch;
};

int64_t parameters_of(const Graph& graph) {
  int64_t count = 0;
  for (const auto& [name, weight] : graph.weights()) count += weight.shape().numel();
  return count;
}

// ---- CLIP ---------------------------------------------------------------------------------------

class ClipText : public testing::TestWithParam<const char*> {
 protected:
  ClipText()
      : fixture_(GetParam()), config_(clip_text::parse_config(fixture_.json["config"], "config")) {
    options_.projected = fixture_.json["projected"];
    options_.states_after = config_.layers - 1;
  }
  std::shared_ptr<Graph> build() const {
    return clip_text::build_text_encoder(config_, fixture_.batch, fixture_.tokens, options_);
  }
  std::map<std::string, Tensor> inputs() const {
    return clip_text::text_inputs(config_, options_, fixture_.tokens, fixture_.prompts);
  }

  const Fixture fixture_;
  const clip_text::Config config_;
  clip_text::Options options_;
};
INSTANTIATE_TEST_SUITE_P(, ClipText, testing::Values("clip", "clip_old", "clip_projected"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(ClipText, EveryLayerAndTheVectorEqualTransformers) {
  options_.tap_layers = true;
  const auto graph = build();
  const auto weights = test::procedural_weights(*graph);
  for (const auto& compiled : {graph, test::tested_compile(*graph)}) {
    auto results = test::tested_program(compiled, weights).run(inputs());
    results["layer." + std::to_string(config_.layers - 2)] = results.at("states");
    EXPECT_EQ(results.size(), static_cast<size_t>(config_.layers) + 2);
    for (const auto& [name, tensor] : results) {
      if (name == "states") continue;
      EXPECT_LE(relative_error(floats(tensor), fixture_.expected(name)), 2e-5) << name;
    }
  }
}

TEST_P(ClipText, RunsOnlyTheLayersThatAreNeeded) {
  options_.pooled = options_.projected = false;
  for (int64_t after = 0; after <= config_.layers; ++after) {
    options_.states_after = after;
    const auto graph = build();
    EXPECT_EQ(clip_text::layers_run(config_, options_), after);
    EXPECT_EQ(graph->regions().size(), static_cast<size_t>(after));
    EXPECT_FALSE(graph->weights().contains("text_model.final_layer_norm.weight"));
    const auto results =
        test::tested_program(graph, test::procedural_weights(*graph)).run(inputs());
    const std::string name = after == 0 ? "embedded" : fmt::format("layer.{}", after - 1);
    EXPECT_LE(relative_error(floats(results.at("states")), fixture_.expected(name)), 2e-5) << name;
  }
}

TEST_P(ClipText, GradientsOfAllWeightsEqualAutograd) {
  const auto graph = build();
  const auto distance = [&](const char* name) {
    const Value y = graph->outputs().at(name);
    const Tensor goal =
        test::procedural_uniform(fmt::format("clip.{}", name), y.shape(), std::sqrt(3.0f));
    return mean_squared_error(y, graph->constant(fmt::format("goal of {}", name), goal));
  };
  const Value loss = distance("states") + distance("pooled");
  graph->output("loss", loss);
  std::vector<Value> wrt;
  for (const auto& [name, weight] : graph->weights()) wrt.push_back(weight);
  const auto gradients = differentiate(loss, wrt);
  for (size_t i = 0; i < wrt.size(); ++i) {
    graph->output("grad." + graph->info(wrt[i]).name, gradients[i]);
  }
  const auto results = test::tested_program(graph, test::procedural_weights(*graph)).run(inputs());
  EXPECT_LE(relative_error(floats(results.at("loss")), fixture_.expected("loss")), 2e-5);
  size_t compared = 0;
  for (const TensorEntry& entry : fixture_.file.tensors()) {
    if (!entry.name.starts_with("grad.")) continue;
    ++compared;
    const auto expected = floats(fixture_.file.tensor(entry));
    ASSERT_TRUE(results.contains(entry.name)) << entry.name;
    // Attention does not change by what all keys have in common.
    const double of_nothing = entry.name.ends_with("k_proj.bias") ? 1e-6 : 0;
    double difference = 0, norm = 0;
    const auto actual = floats(results.at(entry.name));
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(actual[i] - expected[i], 2);
      norm += std::pow(expected[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), 1e-4 * std::sqrt(norm) + of_nothing) << entry.name;
  }
  EXPECT_EQ(compared, graph->weights().size());
}

TEST(ClipTextPrompts, EndAtTheFirstEndOrTheLargestId) {
  clip_text::Config c;
  const std::vector<int32_t> ids = {49406, 2, 5, 49407, 49407, 2};
  EXPECT_EQ(clip_text::end_of(c, ids), 3);
  c.eos = 2;
  EXPECT_EQ(clip_text::end_of(c, ids), 3);
  c.eos = 5;
  EXPECT_EQ(clip_text::end_of(c, ids), 2);
  c.eos = 7;
  EXPECT_EQ(test::error_of([&] { clip_text::end_of(c, ids); }),
            "prompt: has no token 7, which ends it");
}

TEST(ClipTextConfig, PublishedOnesAreKnown) {
  const auto l = clip_text::clip_l(), g = clip_text::big_g();
  const auto parameters = [](const clip_text::Config& c, bool projected) {
    clip_text::Options options;
    options.projected = projected;
    const auto graph = clip_text::build_text_encoder(c, 1, 1, options);
    return parameters_of(*graph);
  };
  EXPECT_EQ(parameters(l, false), 123060480);
  EXPECT_EQ(parameters(g, true), 694659840);
}

// ---- T5 -----------------------------------------------------------------------------------------

TEST(T5, EveryLayerEqualsTransformersWithAndWithoutLengths) {
  const Fixture fixture("t5");
  const auto config = t5::parse_config(fixture.json["config"], "config");
  for (const bool lengths : {false, true}) {
    const t5::Options options{DType::kF32, true, lengths};
    const auto graph = t5::build_text_encoder(config, fixture.batch, fixture.tokens, options);
    const auto weights = test::procedural_weights(*graph);
    const auto inputs = t5::text_inputs(config, options, fixture.tokens, fixture.prompts);
    for (const auto& compiled : {graph, test::tested_compile(*graph)}) {
      const auto results = test::tested_program(compiled, weights).run(inputs);
      EXPECT_LE(relative_error(floats(results.at("states")),
                               fixture.expected(lengths ? "masked" : "states")),
                2e-5);
      for (int64_t i = 0; !lengths && i < config.layers - 1; ++i) {
        const std::string name = fmt::format("layer.{}", i);
        EXPECT_LE(relative_error(floats(results.at(name)), fixture.expected(name)), 2e-5) << name;
      }
    }
    int tables = 0;
    for (const auto& [name, value] : graph->weights()) {
      tables += name.ends_with("relative_attention_bias.weight") ? 1 : 0;
    }
    EXPECT_EQ(tables, 1);
  }
  EXPECT_GT(relative_error(fixture.expected("masked"), fixture.expected("states")), 1e-3);
}

TEST(T5, BucketsAreThoseOfTransformers) {
  const Fixture fixture("t5");
  for (const auto& one : fixture.json["buckets"]) {
    t5::Config config;
    config.buckets = one["count"];
    config.max_distance = one["most"];
    const auto ids = one["ids"].get<std::vector<int64_t>>();
    for (size_t i = 0; i < ids.size(); ++i) {
      const int64_t distance = static_cast<int64_t>(i) - 2 * config.max_distance;
      EXPECT_EQ(t5::bucket_of(config, distance), ids[i])
          << config.buckets << " " << config.max_distance << " " << distance;
    }
  }
  const int64_t starts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
  for (int64_t b = 0; b < 16; ++b) {
    EXPECT_EQ(t5::bucket_of({}, -starts[b]), b);
    if (b > 0) {
      EXPECT_EQ(t5::bucket_of({}, -starts[b] + 1), b - 1);
      EXPECT_EQ(t5::bucket_of({}, starts[b]), 16 + b);
    }
  }
  EXPECT_EQ(t5::bucket_of({}, -511), 15);
  EXPECT_EQ(t5::bucket_of({}, 511), 31);
}

TEST(T5, LayersMayHaveATableEach) {
  const Fixture fixture("t5");
  auto config = t5::parse_config(fixture.json["config"], "config");
  const auto run = [&](Weights weights, bool each) {
    config.bias_of_each_layer = each;
    const auto graph = t5::build_text_encoder(config, fixture.batch, fixture.tokens, {});
    for (auto& [name, weight] : test::procedural_weights(*graph)) weights.emplace(name, weight);
    return floats(test::tested_program(graph, weights)
                      .run(t5::text_inputs(config, {}, fixture.tokens, fixture.prompts))
                      .at("states"));
  };
  const auto name = [](int64_t layer) {
    return fmt::format("encoder.block.{}.layer.0.SelfAttention.relative_attention_bias.weight",
                       layer);
  };
  Weights same;
  const Tensor first = test::procedural_weight(name(0), {config.buckets, config.heads});
  for (int64_t i = 0; i < config.layers; ++i) same.emplace(name(i), first);
  const auto shared = run({}, false);
  EXPECT_EQ(run(same, true), shared);
  EXPECT_GT(relative_error(run({}, true), shared), 1e-3);
}

// Aligned, so that every format takes its linears.
TEST(T5, PrecisionsCostWhatTheyShouldAndNotLess) {
  const Fixture fixture("t5_aligned");
  const auto config = t5::parse_config(fixture.json["config"], "config");
  const auto exact = fixture.expected("states");
  const std::pair<Format, const char*> tested[] = {{formats::fp8, "fp8"},
                                                   {formats::fp8_tensor, "fp8"},
                                                   {formats::mxfp8, "mxfp8"},
                                                   {formats::nvfp4, "nvfp4"}};
  const auto graph = t5::build_text_encoder(config, fixture.batch, fixture.tokens, {DType::kBF16});
  const auto inputs = t5::text_inputs(config, {}, fixture.tokens, fixture.prompts);
  const auto run = [&](const std::shared_ptr<Graph>& g, const Weights& weights) {
    return floats(test::tested_program(g, weights).run(inputs).at("states"));
  };
  Weights wide = test::procedural_weights(*graph);
  for (auto& [name, weight] : wide) {
    if (!name.ends_with("SelfAttention.q.weight")) continue;
    for (bf16& v : std::get<Tensor>(weight).mutable_as<bf16>()) {
      v = to_bf16(to_float(v) * fixture.json["shrink"].get<float>());
    }
  }
  const auto narrow = run(graph, wide);
  EXPECT_LE(relative_error(narrow, exact), 0.02);
  for (const auto& [format, as] : tested) {
    CompileOptions how;
    how.recipe = t5::layers_recipe(format);
    how.recipe->activations = true;  // as the fixture has it
    how.optimize = false;
    const CompiledGraph plain = compile(*graph, how, test::tested_kernels(), test::tested_stream());
    EXPECT_EQ(plain.report.converted.size(), static_cast<size_t>(7 * config.layers));
    EXPECT_TRUE(plain.report.kept.empty());
    Weights weights = wide;
    quantize_weights(weights, plain.report, cpu_kernels(), {2});
    const auto states = run(plain.graph, weights);
    const double error = relative_error(states, exact);
    const double emulated = fixture.json["errors"][as];
    EXPECT_NEAR(error, emulated, 0.15 * emulated) << format.name;
    how.optimize = true;
    EXPECT_LE(relative_error(run(test::tested_compile(*graph, how), weights), states),
              test::compile_tolerance(DType::kBF16))
        << format.name;
    // As models run it: the weights' rounding alone costs less, and more than nothing.
    how.recipe = t5::layers_recipe(format);
    const double of_weights =
        relative_error(run(test::tested_compile(*graph, how), weights), exact);
    RecordProperty(std::string(format.name),
                   fmt::format("{:.5f} of weights, {:.5f} with inputs", of_weights, error));
    EXPECT_LT(of_weights, 0.9 * error) << format.name;
    EXPECT_GT(of_weights, relative_error(narrow, exact)) << format.name;
  }
}

TEST(T5Config, PublishedOneIsKnown) {
  const auto graph = t5::build_text_encoder(t5::xxl(), 1, 1, {});
  EXPECT_EQ(parameters_of(*graph), 4762310656);
}

}  // namespace
}  // namespace halftone
