// Linears in low precision: each agrees with the reference of its format, and its error against the
// product in high precision lies in that format's band, so a mode that does nothing fails.
#include "halftone/passes/quantize.h"

#include <gtest/gtest.h>

#include "halftone/kernels/quantize.h"
#include "halftone/passes/lower.h"
#include "tests/support/backend.h"
#include "tests/support/errors.h"
#include "tests/support/run_graph.h"
#include "tests/support/sanitizers.h"

namespace halftone {
namespace {

using test::floats;
using test::random_tensor;
using test::relative_error;

// y = linear(x [batch, tokens, K], w [N, K]), lowered to this recipe.
struct LinearCase {
  int64_t batch = 1, tokens = 256, n = 48, k = 3072;
  DType dtype = DType::kBF16;

  std::shared_ptr<Graph> graph() const {
    auto graph = std::make_shared<Graph>();
    const Value x = graph->input("x", {{batch, tokens, k}, dtype, {}});
    const Value w = graph->weight("a.weight", {{n, k}, DType::kF32, {}});
    const Value b = graph->weight("a.bias", {{n}, DType::kF32, {}});
    graph->output("y", linear(x, w, b));
    return graph;
  }
  Weights weights() const {
    return {{"a.weight", random_tensor({n, k}, 1, DType::kBF16)},
            {"a.bias", Tensor::zeros(DType::kF32, {n})}};
  }
  Tensor x() const { return random_tensor({batch, tokens, k}, 2, dtype); }

  Tensor run(const QuantizeRecipe& recipe, const Tensor& input, bool reference = false) const {
    const QuantizedGraph quantized = quantize_linears(*graph(), recipe);
    Weights converted = weights();
    converted["a.weight"] =
        quantize(cpu_kernels(), std::get<Tensor>(converted["a.weight"]), recipe.format, {}, {2});
    const auto lowered = lower(*quantized.graph);
    Program program = reference ? Program(lowered, converted, cpu_scalar_kernels(), {2})
                                : test::tested_program(lowered, converted);
    return program.run({{"x", input}}).at("y");
  }
  Tensor exact() const {
    LinearCase high = *this;
    high.dtype = DType::kF32;
    Tensor wide = Tensor::empty(DType::kF32, x().shape());
    const auto values = floats(x());
    std::copy(values.begin(), values.end(), wide.mutable_as<float>().begin());
    return test::tested_program(high.graph(), weights()).run({{"x", wide}}).at("y");
  }
};

QuantizeRecipe recipe_of(const Format& format, bool activations = true) {
  QuantizeRecipe recipe;
  recipe.format = format;
  recipe.activations = activations;
  return recipe;
}

// Weights alone are rounded in a variant: fused quantizers know the plain format.
TEST(QuantizedLinears, VariantsAreOfWeightsAlone) {
  for (const Format& format : {formats::nvfp4_4over6, formats::nvfp4_16x16}) {
    const QuantizedGraph quantized = quantize_linears(*LinearCase{}.graph(), recipe_of(format));
    EXPECT_EQ(quantized.report.converted.at(0).format, format);
    int linears = 0;
    for (const Node& node : quantized.graph->nodes()) {
      if (node.op != Op::kLinear) continue;
      ++linears;
      EXPECT_EQ(quantized.graph->values()[node.inputs[1]].type.quantized, format);
      EXPECT_EQ(std::get<LinearAttributes>(node.attributes).activations, formats::nvfp4);
    }
    EXPECT_EQ(linears, 1);
  }
}

struct Band {
  Format format;
  double both, weight_only;
};
class QuantizedLinear : public testing::TestWithParam<Band> {};
INSTANTIATE_TEST_SUITE_P(, QuantizedLinear,
                         testing::Values(Band{formats::fp8, 3.74e-2, 2.65e-2},
                                         Band{formats::fp8_tensor, 3.75e-2, 2.65e-2},
                                         Band{formats::mxfp8, 3.77e-2, 2.66e-2},
                                         Band{formats::nvfp4, 1.35e-1, 9.53e-2},
                                         Band{formats::nvfp4_4over6, 1.28e-1, 8.63e-2},
                                         Band{formats::nvfp4_16x16, 1.46e-1, 1.11e-1}),
                         [](const auto& tested) {
                           std::string name(tested.param.format.name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(QuantizedLinear, AgreesWithTheReferenceAndItsErrorLiesInTheBand) {
  HT_SKIP_WHERE_SANITIZED();
  for (const bool activations : {true, false}) {
    const QuantizeRecipe recipe = recipe_of(GetParam().format, activations);
    const double band = activations ? GetParam().both : GetParam().weight_only;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const LinearCase c{2, 128, 48, 3072, dtype};
      const auto fast = floats(c.run(recipe, c.x()));
      const auto reference = floats(c.run(recipe, c.x(), true));
      EXPECT_LE(relative_error(fast, reference), test::product_tolerance(dtype));
      EXPECT_NEAR(relative_error(fast, floats(c.exact())), band, 0.1 * band);
    }
  }
}

TEST_P(QuantizedLinear, ARowDoesNotDependOnItsBatch) {
  for (const int64_t tokens : {1, 5, 32}) {  // few rows take another way
    const LinearCase three{3, tokens, 40, 256, DType::kBF16}, one{1, tokens, 40, 256, DType::kBF16};
    const QuantizeRecipe recipe = recipe_of(GetParam().format);
    const auto all = three.run(recipe, three.x());
    for (int64_t i = 0; i < 3; ++i) {
      const auto alone = one.run(recipe, three.x().rows(i, i + 1));
      EXPECT_EQ(floats(alone), floats(all.rows(i, i + 1))) << tokens << " tokens, item " << i;
    }
    const auto reference = three.run(recipe, three.x(), true);
    EXPECT_LE(relative_error(floats(all), floats(reference)),
              test::product_tolerance(DType::kBF16));
  }
}

// dx = dy W with what W's codes stand for; rounding of x is taken for the identity.
TEST_P(QuantizedLinear, GradientGoesThroughTheQuantizedWeight) {
  const LinearCase c{2, 20, 64, 96, DType::kF32};
  const auto quantized = quantize_linears(*c.graph(), recipe_of(GetParam().format));
  const auto graph = lower(*quantized.graph);
  const Value loss = sum_to(graph->outputs().at("y") * graph->outputs().at("y"), {1});
  const Value wrt[] = {graph->inputs().at("x")};
  graph->output("dx", differentiate(loss, wrt)[0]);
  Weights weights = c.weights();
  const auto q =
      quantize(cpu_kernels(), std::get<Tensor>(weights["a.weight"]), GetParam().format, {}, {1});
  weights["a.weight"] = q;
  const auto results = test::tested_program(graph, weights).run({{"x", c.x()}});
  const auto w = floats(dequantize(cpu_kernels(), q, DType::kF32, {1}));
  const auto y = floats(results.at("y"));
  std::vector<float> expected(static_cast<size_t>(2 * 20 * 96));
  for (int64_t r = 0; r < 40; ++r) {
    for (int64_t k = 0; k < 96; ++k) {
      double sum = 0;
      for (int64_t n = 0; n < 64; ++n) sum += 2.0 * y[r * 64 + n] * w[n * 96 + k];
      expected[r * 96 + k] = static_cast<float>(sum);
    }
  }
  EXPECT_LE(relative_error(floats(results.at("dx")), expected), 1e-6);
}

std::shared_ptr<Graph> three_linears() {
  auto graph = std::make_shared<Graph>();
  const auto weight = [&](const char* name, int64_t n, int64_t k) {
    return graph->weight(name, {{n, k}, DType::kF32, {}});
  };
  const Value x = graph->input("x", {{1, 4, 64}, DType::kF32, {}});
  const Value q = linear(x, weight("block.q.weight", 96, 64));
  const Value k = linear(x, weight("block.k.weight", 96, 64));
  graph->output("y", linear(q + k, weight("final.weight", 8, 96)));
  return graph;
}

TEST(QuantizePass, ReportsWhatItConvertedWhatNotAndWhy) {
  QuantizeRecipe recipe = recipe_of(formats::fp8);
  recipe.include = {"block.*", "final.*"};
  recipe.keep = {{"final.*", "the final layer"}};
  const QuantizedGraph quantized = quantize_linears(*three_linears(), recipe);
  ASSERT_EQ(quantized.report.converted.size(), 2u);
  EXPECT_EQ(quantized.report.converted[0].weight, "block.q.weight");
  ASSERT_EQ(quantized.report.kept.size(), 1u);
  EXPECT_EQ(quantized.report.kept[0].reason, "the final layer");
  EXPECT_FALSE(quantized.report.kept[0].unsupported);
  EXPECT_TRUE(quantized.graph->weights().at("block.q.weight").type().quantized.has_value());
  EXPECT_FALSE(quantized.graph->weights().at("final.weight").type().quantized.has_value());

  recipe.include = {"block.k.*"};
  recipe.keep.clear();
  const auto report = quantize_linears(*three_linears(), recipe).report;
  EXPECT_EQ(report.kept[0].reason, "not selected by the recipe");
}

TEST(QuantizePass, ConvertingNothingIsAnErrorAndShapesThatDoNotFitAreNamed) {
  QuantizeRecipe recipe = recipe_of(formats::fp8);
  recipe.least_size = 1024;
  EXPECT_EQ(test::error_of([&] { quantize_linears(*three_linears(), recipe); }),
            "fp8: no linear of the model can be converted; 'block.q.weight': a side of 64 is less "
            "than 1024");
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{2, 40}, DType::kF32, {}});
  const Value h = linear(x, graph->weight("a.weight", {{32, 40}, DType::kF32, {}}));
  graph->output("y", linear(h, graph->weight("b.weight", {{8, 32}, DType::kF32, {}})));
  const auto report = quantize_linears(*graph, recipe_of(formats::mxfp8)).report;
  ASSERT_EQ(report.kept.size(), 1u);
  EXPECT_EQ(report.kept[0].reason, "40 inputs are no multiple of mxfp8's block of 32");
  EXPECT_TRUE(report.kept[0].unsupported);
}

TEST(QuantizePass, StoredFormatsWinOverTheRecipe) {
  QuantizeRecipe recipe = recipe_of(formats::fp8);
  recipe.stored = {{"block.q.weight", {formats::nvfp4}}};
  const auto graph = quantize_linears(*three_linears(), recipe).graph;
  EXPECT_EQ(graph->weights().at("block.q.weight").type().quantized, formats::nvfp4);
  EXPECT_EQ(graph->weights().at("block.k.weight").type().quantized, formats::fp8);
}

// One scale for all items: a value beyond it saturates instead of stretching the others.
TEST(QuantizePass, StaticScalesAreUsedAsTheyAre) {
  for (const Format& format : {formats::fp8, formats::fp8_tensor, formats::nvfp4}) {
    auto graph = std::make_shared<Graph>();
    const Value x = graph->input("x", {{2, 4, 32}, DType::kF32, {}});
    graph->output("y", linear(x, graph->weight("w", {{32, 32}, DType::kF32, {}})));
    QuantizeRecipe recipe;
    recipe.format = format;
    const float scale = format.global_scale ? 1.0f / 448 : 1.0f / 64;
    recipe.input_scales = {{"w", scale}};
    const auto lowered = lower(*quantize_linears(*graph, recipe).graph);
    std::vector<float> eye(32 * 32, 0.0f), values(2 * 4 * 32, 0.5f);
    for (int i = 0; i < 32; ++i) eye[33 * i] = 1;
    values[0] = 1000;
    const Weights weights = {
        {"w", quantize(cpu_kernels(), test::f32_tensor({32, 32}, eye), format, {}, {1})}};
    const auto y =
        test::tested_program(lowered, weights).run({{"x", test::f32_tensor({2, 4, 32}, values)}});
    const auto out = test::floats(y.at("y"));
    const float most = format.global_scale ? 448 * 6 * scale : 448 * scale;
    EXPECT_NEAR(out[0], most, 1e-3f * most) << format.name;
    for (size_t i = 16; i < out.size(); ++i) ASSERT_NEAR(out[i], 0.5f, 0.02f) << format.name;
  }
}

TEST(LowerPass, LinearsWithDifferentStaticScalesShareNothing) {
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{1, 4, 32}, DType::kF32, {}});
  for (const char* name : {"a", "b", "c"}) {
    graph->output(name, linear(x, graph->weight(name, {{32, 32}, DType::kF32, {}})));
  }
  QuantizeRecipe recipe;
  recipe.format = formats::fp8_tensor;
  recipe.input_scales = {{"a", 0.1f}, {"b", 0.1f}, {"c", 0.2f}};
  const auto lowered = lower(*quantize_linears(*graph, recipe).graph);
  EXPECT_EQ(std::count_if(lowered->nodes().begin(), lowered->nodes().end(),
                          [](const Node& node) { return node.op == Op::kQuantize; }),
            2);
}

TEST(LowerPass, LinearsOnTheSameInputShareOneQuantizedCopy) {
  const auto count = [](const Graph& graph) {
    return std::count_if(graph.nodes().begin(), graph.nodes().end(),
                         [](const Node& node) { return node.op == Op::kQuantize; });
  };
  EXPECT_EQ(count(*lower(*quantize_linears(*three_linears(), recipe_of(formats::fp8)).graph)), 2);
  EXPECT_EQ(count(*lower(*three_linears())), 0);
}

TEST(Program, WeightsInAnotherFormatThanTheGraphsAreNamed) {
  const auto graph = lower(*quantize_linears(*three_linears(), recipe_of(formats::fp8)).graph);
  const Tensor w = random_tensor({96, 64}, 1, DType::kBF16);
  Weights weights = {{"block.q.weight", w},
                     {"block.k.weight", quantize(cpu_kernels(), w, formats::mxfp8, {}, {1})},
                     {"final.weight", Tensor::zeros(DType::kF32, {8, 96})}};
  weights["final.weight"] =
      quantize(cpu_kernels(), random_tensor({8, 96}, 2), formats::fp8, {}, {});
  EXPECT_EQ(test::error_of([&] { Program(graph, weights, cpu_kernels(), {}); }),
            "weights: 'block.k.weight' is mxfp8 instead of fp8; 'block.q.weight' is not quantized "
            "to fp8");
}

}  // namespace
}  // namespace halftone
