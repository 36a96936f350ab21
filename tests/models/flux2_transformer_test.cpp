// Tiny FLUX.2 transformers against diffusers: every block, the result, and gradients of a loss; and
// what precisions cost.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/graph/catalogue.h"
#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/flux2/names.h"
#include "halftone/models/flux2/transformer.h"
#include "halftone/models/weights.h"
#include "halftone/passes/compile.h"
#include "tests/support/backend.h"
#include "tests/support/flux2_case.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"

namespace halftone::flux2 {
namespace {

using test::floats;
using test::relative_error;

class Flux2Golden : public testing::TestWithParam<const char*>, protected test::Flux2Case {
 protected:
  Flux2Golden() : test::Flux2Case(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(, Flux2Golden, testing::Values("small", "reference", "aligned"),
                         [](const auto& tested) { return tested.param; });

TEST_P(Flux2Golden, EveryBlockEqualsDiffusers) {
  const auto graph = build_transformer(config_, shape_, {DType::kF32, true});
  auto program = test::tested_program(graph, test::procedural_weights(*graph));
  const auto results = program.run(inputs_);
  int blocks = 0;
  for (const auto& [name, result] : results) {
    EXPECT_LE(relative_error(floats(result), expected(name)), 2e-5) << name;
    blocks += name.find("transformer_blocks") != std::string::npos;
  }
  EXPECT_EQ(blocks, 2 * config_.layers + config_.single_layers);
  EXPECT_TRUE(results.contains("time_guidance_embed"));
}

TEST_P(Flux2Golden, Bf16IsNoWorseThanDiffusersInBf16) {
  const auto graph = build_transformer(config_, shape_, {DType::kBF16, false});
  auto program = test::tested_program(graph, test::procedural_weights(*graph));
  const double error =
      relative_error(floats(program.run(inputs_).at("sample")), expected("sample"));
  EXPECT_LE(error, 1.25 * bf16_error_);
  EXPECT_GE(error, 0.1 * bf16_error_);  // it did round
}

TEST_P(Flux2Golden, CompiledGivesTheSameBits) {
  for (const DType activations : {DType::kF32, DType::kBF16}) {
    const auto graph = build_transformer(config_, shape_, {activations, true});
    const auto weights = test::procedural_weights(*graph);
    const auto apart = test::tested_program(graph, weights).run(inputs_);
    const auto fused_graph = test::tested_compile(*graph);
    for (const Node& node : fused_graph->nodes()) {
      const bool row_op = node.op == Op::kRope || node.op == Op::kAdd || node.op == Op::kMul ||
                          node.op == Op::kSiluMul || node.op == Op::kRmsNorm ||
                          node.op == Op::kLayerNorm;
      EXPECT_FALSE(row_op && node.region >= 0) << op_info(node.op).name;
    }
    auto fused = test::tested_program(fused_graph, weights);
    for (const auto& [name, tensor] : fused.run(inputs_)) {
      EXPECT_LE(relative_error(floats(tensor), floats(apart.at(name))),
                test::compile_tolerance(activations))
          << name;
    }
  }
}

// A row of a batch is what it is alone: prompts and sigmas do not mix.
TEST_P(Flux2Golden, RowsOfABatchAreThoseOfTheirOwn) {
  for (int64_t b = 0; b < shape_.batch; ++b) {
    std::vector<Tensor> references;
    for (const Tensor& reference : references_) references.push_back(reference.rows(b, b + 1));
    const auto inputs = transformer_inputs(config_, latents_.rows(b, b + 1), {&sigmas_[b], 1},
                                           {&texts_[b], 1}, references);
    TransformerShape shape = shape_;
    shape.batch = 1;
    const auto graph = build_transformer(config_, shape, {});
    const Tensor alone =
        test::tested_program(graph, test::procedural_weights(*graph)).run(inputs).at("sample");
    EXPECT_LE(relative_error(floats(alone), floats(fixture_.tensor("sample").rows(b, b + 1))),
              2e-5);
  }
}

// The error of u g or g v, u and v uniform in [-1, 1), relative to what such a product of a matrix
// with g's norm has: a product that happens to cancel does not blow up the error of g.
double projection_error(const std::vector<double>& y, const std::vector<float>& reference,
                        const std::vector<float>& g) {
  EXPECT_EQ(y.size(), reference.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < y.size(); ++i) difference += std::pow(y[i] - reference[i], 2);
  for (const float v : g) norm += double{v} * v;
  return std::sqrt(difference / (norm / 3));
}

TEST_P(Flux2Golden, GradientsOfALossEqualAutograd) {
  const auto graph = build_transformer(config_, shape_, {});
  const Tensor target_values =
      test::procedural_uniform(name_ + ".target", latents_.shape(), std::sqrt(3.0f));
  const Value target = graph->input("target", {latents_.shape(), DType::kF32, {}});
  const Value loss = mean_squared_error(graph->outputs().at("sample"), target);
  graph->output("loss", loss);
  std::vector<Value> wrt = {graph->inputs().at("latents"), graph->inputs().at("text")};
  if (shape_.reference_tokens > 0) wrt.push_back(graph->inputs().at("references"));
  const size_t inputs_asked = wrt.size();
  for (const auto& [name, value] : graph->weights()) wrt.push_back(value);
  const auto gradients = differentiate(loss, wrt);
  for (size_t i = 0; i < wrt.size(); ++i) {
    graph->output("grad." + graph->info(wrt[i]).name, gradients[i]);
  }
  auto program = test::tested_program(graph, test::procedural_weights(*graph));
  auto inputs = inputs_;
  inputs["target"] = target_values;
  const auto results = program.run(inputs);

  EXPECT_LE(relative_error(floats(results.at("loss")), expected("loss")), 2e-5);
  for (size_t i = 0; i < inputs_asked; ++i) {
    const std::string name = "grad." + graph->info(wrt[i]).name;
    EXPECT_LE(relative_error(floats(results.at(name)), expected(name)), 2e-5) << name;
  }
  for (const auto& [name, value] : graph->weights()) {
    const auto g = floats(results.at("grad." + name));
    if (fixture_.find("grad." + name) != nullptr) {
      EXPECT_LE(relative_error(g, expected("grad." + name)), 2e-5) << name;
      continue;
    }
    const int64_t rows = value.dim(0), cols = value.dim(1);
    const auto left = floats(test::procedural_uniform(fmt::format("left.{}", rows), {rows}));
    const auto right = floats(test::procedural_uniform(fmt::format("right.{}", cols), {cols}));
    std::vector<double> along(cols), across(rows);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        along[c] += double{left[r]} * g[r * cols + c];
        across[r] += double{right[c]} * g[r * cols + c];
      }
    }
    EXPECT_LE(projection_error(along, expected("grad_left." + name), g), 2e-5) << name;
    EXPECT_LE(projection_error(across, expected("grad_right." + name), g), 2e-5) << name;
  }
}

// Which precision, and the relative error of the model's output that it costs.
struct PrecisionBand {
  Format format;
  double least, most;
};

TEST(Flux2Precisions, CostWhatTheyShouldAndNotLess) {
  const test::Flux2Case tested("aligned");
  const PrecisionBand bands[] = {{formats::fp8, 0.006, 0.03},
                                 {formats::fp8_tensor, 0.006, 0.03},
                                 {formats::mxfp8, 0.006, 0.03},
                                 {formats::nvfp4, 0.02, 0.1}};
  const auto exact = tested.expected("sample");
  for (const auto& [format, least, most] : bands) {
    const auto graph = build_transformer(tested.config_, tested.shape_, {DType::kBF16, false});
    CompileOptions how;
    how.recipe = default_recipe(format);
    how.optimize = false;
    const CompiledGraph plain = compile(*graph, how, test::tested_kernels(), test::tested_stream());
    // All linears of blocks, and nothing else.
    EXPECT_EQ(plain.report.converted.size(),
              static_cast<size_t>(12 * tested.config_.layers + 2 * tested.config_.single_layers));
    EXPECT_EQ(plain.report.kept.size(), 9u);
    for (const auto& kept : plain.report.kept) {
      EXPECT_FALSE(kept.unsupported) << kept.weight;
      EXPECT_NE(kept.reason, "not selected by the recipe") << kept.weight;
    }
    Weights weights = test::procedural_weights(*graph);
    quantize_weights(weights, plain.report, cpu_kernels(), {2});
    const auto run = [&](const std::shared_ptr<Graph>& g) {
      return floats(test::tested_program(g, weights).run(tested.inputs_).at("sample"));
    };
    const auto sample = run(plain.graph);
    how.optimize = true;
    const double error = relative_error(sample, exact);
    EXPECT_GE(error, least) << format.name;
    EXPECT_LE(error, most) << format.name;
    EXPECT_LE(relative_error(run(test::tested_compile(*graph, how)), sample),
              test::compile_tolerance(DType::kBF16))
        << format.name << ": compiled and not differ";
  }
}

}  // namespace
}  // namespace halftone::flux2
