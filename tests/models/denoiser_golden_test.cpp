// Tiny denoisers of several families against diffusers: every block, the result, and gradients of a
// loss; and what precisions cost. A family is a row of kGolden, its fixtures are made by
// tools/golden/denoiser.py.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "halftone/graph/catalogue.h"
#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/family.h"
#include "halftone/models/flux1/family.h"
#include "halftone/models/sd3/family.h"
#include "halftone/models/sdxl/family.h"
#include "halftone/models/weights.h"
#include "halftone/passes/autodiff.h"
#include "halftone/passes/compile.h"
#include "tests/support/backend.h"
#include "tests/support/denoiser_case.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

using test::DenoiserCase;
using test::floats;
using test::Golden;
using test::relative_error;

const Golden kGolden[] = {
    {"flux1", flux1::family, "small"},   {"flux1", flux1::family, "schnell"},
    {"flux1", flux1::family, "aligned"}, {"sd3", sd3::family, "small"},
    {"sd3", sd3::family, "first"},       {"sd3", sd3::family, "aligned"},
    {"sdxl", sdxl::family, "small"},     {"sdxl", sdxl::family, "levels"},
};

class DenoiserGolden : public testing::TestWithParam<Golden>, protected DenoiserCase {
 protected:
  DenoiserGolden() : DenoiserCase(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(, DenoiserGolden, testing::ValuesIn(kGolden),
                         testing::PrintToStringParamName());

TEST_P(DenoiserGolden, EveryBlockEqualsDiffusers) {
  const auto graph = denoiser_->build(shape(), {DType::kF32, true});
  auto program = test::tested_program(graph, test::procedural_weights(*graph));
  const auto results = program.run(inputs());
  size_t compared = 0;
  for (const auto& [name, result] : results) {
    EXPECT_LE(relative_error(floats(result), expected(name)), 2e-5) << name;
    ++compared;
  }
  size_t known = 0;  // what diffusers' modules gave
  for (const TensorEntry& entry : fixture_.tensors()) {
    known += !entry.name.starts_with("grad") && entry.name != "loss";
  }
  EXPECT_EQ(compared, known);
}

TEST_P(DenoiserGolden, Bf16IsNoWorseThanDiffusersInBf16) {
  const auto graph = denoiser_->build(shape(), {DType::kBF16, false});
  auto program = test::tested_program(graph, test::procedural_weights(*graph));
  const double error =
      relative_error(floats(program.run(inputs()).at("sample")), expected("sample"));
  EXPECT_LE(error, 1.25 * bf16_error());
  EXPECT_GE(error, 0.1 * bf16_error());  // it did round
}

// A sum of what products, convolutions and fused rows gave: by itself it is no chain, and products
// take it in where that is of use.
bool is_sum_of_others(const Graph& graph, const Node& node) {
  return node.op == Op::kAdd && std::ranges::none_of(node.inputs, [&](int id) {
           const int producer = graph.values()[static_cast<size_t>(id)].producer;
           if (producer < 0) return true;
           const Op op = graph.nodes()[static_cast<size_t>(producer)].op;
           return op == Op::kMul || op == Op::kLayerNorm || op == Op::kRmsNorm || op == Op::kRope;
         });
}

TEST_P(DenoiserGolden, CompiledGivesTheSame) {
  for (const DType activations : {DType::kF32, DType::kBF16}) {
    const auto graph = denoiser_->build(shape(), {activations, true});
    const auto weights = test::procedural_weights(*graph);
    const auto apart = test::tested_program(graph, weights).run(inputs());
    const auto fused_graph = test::tested_compile(*graph);
    // Pictures that convolutions make are added to each other there.
    const bool adds_pictures = GetParam().family == std::string("sdxl");
    for (const Node& node : fused_graph->nodes()) {
      const bool row_op = node.op == Op::kRope || node.op == Op::kAdd || node.op == Op::kMul ||
                          node.op == Op::kSiluMul || node.op == Op::kLayerNorm ||
                          node.op == Op::kRmsNorm;
      const bool left = adds_pictures && is_sum_of_others(*fused_graph, node);
      EXPECT_FALSE(row_op && node.region >= 0 && !left) << op_info(node.op).name;
    }
    // There a sum is rounded once rather than twice.
    const double most = test::compile_tolerance(activations) *
                        (adds_pictures && activations == DType::kBF16 ? 2 : 1);
    auto fused = test::tested_program(fused_graph, weights);
    for (const auto& [name, tensor] : fused.run(inputs())) {
      EXPECT_LE(relative_error(floats(tensor), floats(apart.at(name))), most) << name;
    }
  }
}

// A row of a batch is what it is alone: prompts, sigmas and guidances do not mix.
TEST_P(DenoiserGolden, RowsOfABatchAreThoseOfTheirOwn) {
  for (int64_t b = 0; b < latents_.shape()[0]; ++b) {
    const auto graph = denoiser_->build(shape(b, b + 1), {});
    const Tensor alone = test::tested_program(graph, test::procedural_weights(*graph))
                             .run(inputs(b, b + 1))
                             .at("sample");
    EXPECT_LE(relative_error(floats(alone), floats(fixture_.tensor("sample").rows(b, b + 1))),
              2e-5);
  }
}

// The error of u g or g v, u and v uniform in [-1, 1), relative to what such a product of a matrix
// with g's norm has: a product that happens to cancel does not blow up the error of g.
double error_of_projection(const std::vector<double>& y, const std::vector<float>& reference,
                           const std::vector<float>& g) {
  EXPECT_EQ(y.size(), reference.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < y.size(); ++i) difference += std::pow(y[i] - reference[i], 2);
  for (const float v : g) norm += double{v} * v;
  return difference == 0 ? 0 : std::sqrt(difference / (norm / 3));
}

TEST_P(DenoiserGolden, GradientsOfALossEqualAutograd) {
  if (fixture_.find("loss") == nullptr) GTEST_SKIP() << "the fixture has none";
  const auto graph = denoiser_->build(shape(), {});
  const Value target = graph->input("target", {latents_.shape(), DType::kF32, {}});
  const Value loss = mean_squared_error(graph->outputs().at("sample"), target);
  graph->output("loss", loss);
  std::vector<Value> wrt;
  for (const char* input : {"latents", "text", "pooled"}) wrt.push_back(graph->inputs().at(input));
  const size_t inputs_asked = wrt.size();
  for (const auto& [name, value] : graph->weights()) wrt.push_back(value);
  const auto gradients = differentiate(loss, wrt);
  for (size_t i = 0; i < wrt.size(); ++i) {
    graph->output("grad." + graph->info(wrt[i]).name, gradients[i]);
  }
  auto program = test::tested_program(graph, test::procedural_weights(*graph));
  auto given = inputs();
  given["target"] = uniform("target", latents_.shape());
  const auto results = program.run(given);

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
    const int64_t rows = value.dim(0), cols = value.shape().numel() / rows;
    const auto left = floats(test::procedural_uniform(fmt::format("left.{}", rows), {rows}));
    const auto right = floats(test::procedural_uniform(fmt::format("right.{}", cols), {cols}));
    std::vector<double> along(static_cast<size_t>(cols)), across(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        along[c] += double{left[r]} * g[r * cols + c];
        across[r] += double{right[c]} * g[r * cols + c];
      }
    }
    EXPECT_LE(error_of_projection(along, expected("grad_left." + name), g), 2e-5) << name;
    EXPECT_LE(error_of_projection(across, expected("grad_right." + name), g), 2e-5) << name;
  }
}

// Linears of blocks run in a format, and nothing else does.
struct Converted {
  Golden golden;
  size_t linears, kept;
  double costs = 1;  // so many times what it usually does: as in bf16, which costs diffusers more
};
const Converted kConverted[] = {
    {{"flux1", flux1::family, "aligned"}, 12 + 5, 13},
    {{"sd3", sd3::family, "aligned"}, 12 + 4 + 9, 11},
    {{"sdxl", sdxl::family, "aligned"}, 8 * 10, 20, 2.5},
};

struct GoldenBand {
  Format format;
  double least, most;  // of the relative error of the result
};

TEST(DenoiserPrecisions, CostWhatTheyShouldAndNotLess) {
  const GoldenBand bands[] = {{formats::fp8, 0.006, 0.04},
                              {formats::fp8_tensor, 0.006, 0.04},
                              {formats::mxfp8, 0.006, 0.04},
                              {formats::nvfp4, 0.02, 0.13}};
  for (const auto& [golden, linears, kept_linears, costs] : kConverted) {
    const DenoiserCase tested(golden);
    const auto exact = tested.expected("sample");
    for (const auto& [format, least, most] : bands) {
      const auto graph = tested.denoiser_->build(tested.shape(), {DType::kBF16, false});
      CompileOptions how;
      how.recipe = tested.denoiser_->recipe(format);
      how.optimize = false;
      const CompiledGraph plain =
          compile(*graph, how, test::tested_kernels(), test::tested_stream());
      EXPECT_EQ(plain.report.converted.size(), linears);
      EXPECT_EQ(plain.report.kept.size(), kept_linears);
      for (const auto& kept : plain.report.kept) {
        EXPECT_FALSE(kept.unsupported) << kept.weight;
        EXPECT_NE(kept.reason, "not selected by the recipe") << kept.weight;
      }
      Weights weights = test::procedural_weights(*graph);
      quantize_weights(weights, plain.report, cpu_kernels(), {2});
      const auto run = [&](const std::shared_ptr<Graph>& g, const NamedTensors& inputs) {
        return floats(test::tested_program(g, weights).run(inputs).at("sample"));
      };
      const auto sample = run(plain.graph, tested.inputs());
      how.optimize = true;
      const double error = relative_error(sample, exact);
      EXPECT_GE(error, least) << golden << " " << format.name;
      EXPECT_LE(error, costs * most) << golden << " " << format.name;
      // A network that rounding costs more is also changed more by a rounding that turns: by what
      // latents do that are off by half a unit of bf16.
      double turned = test::compile_tolerance(DType::kBF16);
      if (costs > 1) {
        NamedTensors moved = tested.inputs();
        std::vector<float> latents = floats(moved.at("latents"));
        for (float& value : latents) value *= 1 + 1.0f / 512;
        moved.at("latents") = test::f32_tensor(moved.at("latents").shape(), latents);
        turned = std::max(turned, 1.5 * relative_error(run(plain.graph, moved), sample));
      }
      EXPECT_LE(relative_error(run(test::tested_compile(*graph, how), tested.inputs()), sample),
                turned)
          << golden << " " << format.name << ": compiled and not differ";
    }
  }
}

}  // namespace
}  // namespace halftone
