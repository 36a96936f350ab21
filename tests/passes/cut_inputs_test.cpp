// Products of several values side by side, made one by one: the same sum, and scales for each.
#include "halftone/passes/cut_inputs.h"

#include <gtest/gtest.h>

#include "halftone/kernels/quantize.h"
#include "halftone/passes/compile.h"
#include "tests/support/backend.h"
#include "tests/support/count_ops.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::count_ops;
using test::floats;
using test::random_tensor;
using test::relative_error;

constexpr int64_t kRows = 20, kWide = 96, kNarrow = 32, kOut = 64;

// Two linears, one of them on what is put together of "a" and "b".
std::shared_ptr<Graph> two_linears(bool bias) {
  auto graph = std::make_shared<Graph>();
  const Value a = graph->input("a", {{2, kRows, kNarrow}, DType::kF32, {}});
  const Value b = graph->input("b", {{2, kRows, kWide}, DType::kF32, {}});
  const Value w = graph->weight("out.weight", {{kOut, kNarrow + kWide}, DType::kBF16, {}});
  const Value own = graph->weight("own.weight", {{kOut, kNarrow}, DType::kBF16, {}});
  std::optional<Value> by;
  if (bias) by = graph->weight("out.bias", {{kOut}, DType::kBF16, {}});
  graph->output("y", linear(concat({a, b}, 2), w, by) + linear(a, own));
  return graph;
}

Weights weights_of(bool bias) {
  Weights weights = {{"out.weight", random_tensor({kOut, kNarrow + kWide}, 1, DType::kBF16)},
                     {"own.weight", random_tensor({kOut, kNarrow}, 2, DType::kBF16)}};
  if (bias) weights.emplace("out.bias", random_tensor({kOut}, 3, DType::kBF16));
  return weights;
}

Weights cut(Weights weights) {
  const Tensor whole = std::get<Tensor>(weights.at("out.weight"));
  weights.erase("out.weight");
  weights.emplace("out.in0.weight", columns_of(whole, 0, kNarrow));
  weights.emplace("out.in1.weight", columns_of(whole, kNarrow, kNarrow + kWide));
  return weights;
}

// The second value is a hundred thousand times as large.
std::map<std::string, Tensor> inputs() {
  Tensor large = random_tensor({2, kRows, kWide}, 5);
  for (float& v : large.mutable_as<float>()) v *= 1e5f;
  return {{"a", random_tensor({2, kRows, kNarrow}, 4)}, {"b", large}};
}

TEST(CutInputs, GiveTheSameSum) {
  for (const bool bias : {false, true}) {
    const auto whole = two_linears(bias);
    const InputCuts cuts = input_parts(*whole);
    EXPECT_EQ(cuts, (InputCuts{{"out.weight", {kNarrow, kWide}}}));
    const auto parts = cut_inputs(*whole, cuts);
    EXPECT_EQ(count_ops(*parts, Op::kLinear), 3);
    EXPECT_FALSE(parts->weights().contains("out.weight"));
    EXPECT_EQ(parts->weights().at("out.in1.weight").shape(), (Shape{kOut, kWide}));
    const auto expected = test::tested_program(whole, weights_of(bias)).run(inputs()).at("y");
    const auto found = test::tested_program(parts, cut(weights_of(bias))).run(inputs()).at("y");
    EXPECT_LE(relative_error(floats(found), floats(expected)), 1e-6);
  }
}

// Where values of very different sizes have one scale, the small ones are lost.
TEST(CutInputs, HaveScalesOfTheirOwn) {
  auto graph = std::make_shared<Graph>();
  const Value a = graph->input("a", {{2, kRows, kNarrow}, DType::kF32, {}});
  const Value b = graph->input("b", {{2, kRows, kWide}, DType::kF32, {}});
  const Value w = graph->weight("out.weight", {{kOut, kNarrow + kWide}, DType::kBF16, {}});
  graph->output("y", linear(concat({a, b}, 2), w));
  // Columns of the large value are small, so that both count for as much.
  Tensor weight = Tensor::empty(DType::kBF16, {kOut, kNarrow + kWide});
  const auto random = floats(random_tensor({kOut, kNarrow + kWide}, 6));
  for (int64_t i = 0; i < weight.numel(); ++i) {
    const float by = i % (kNarrow + kWide) < kNarrow ? 1.0f : 1e-5f;
    weight.mutable_as<bf16>()[i] = to_bf16(random[i] * by);
  }
  const Weights whole = {{"out.weight", weight}};
  const auto exact = floats(test::tested_program(graph, whole).run(inputs()).at("y"));
  QuantizeRecipe recipe;
  recipe.format = formats::fp8_tensor;
  const auto error = [&](const InputCuts& cuts) {
    CompileOptions how;
    how.cuts = cuts;
    how.recipe = recipe;
    const auto compiled = compile(*graph, how, test::tested_kernels(), test::tested_stream());
    Weights weights = cuts.empty() ? whole : cut(whole);
    for (const auto& linear : compiled.report.converted) {
      Weight& stored = weights.at(linear.weight);
      stored = quantize(cpu_kernels(), std::get<Tensor>(stored), linear.format, {}, {1});
    }
    EXPECT_EQ(compiled.report.converted.size(), cuts.empty() ? 1u : 2u);
    Program program = test::tested_program(compiled.graph, weights);
    return relative_error(floats(program.run(inputs()).at("y")), exact);
  };
  const double together = error({}), apart = error(input_parts(*graph));
  EXPECT_LT(apart, 0.05);
  EXPECT_GT(together, 4 * apart);
}

TEST(CutInputs, AreFoundWhereTheGraphAllowsThem) {
  auto graph = std::make_shared<Graph>();
  const Value a = graph->input("a", {{2, 4, 8}, DType::kF32, {}});
  const Value b = graph->input("b", {{2, 4, 8}, DType::kF32, {}});
  const auto weight = [&](const char* name, int64_t columns) {
    return graph->weight(name, {{8, columns}, DType::kF32, {}});
  };
  const Value both = concat({a, b}, 2);
  const Value one = linear(concat({a, b}, 1), weight("rows.weight", 8));
  const Value two = linear(both, weight("twice.weight", 16));
  const Value three = linear(concat({b, a}, 2), weight("twice.weight", 16));
  const Value four = linear(silu(both), weight("silu.weight", 16));
  const Value five = linear(both, weight("good.weight", 16));
  const Value six = linear(both, weight("nameless", 16));
  graph->output("y", two + three + four + five + six + slice(one, 1, 0, 4));
  graph->output("both", both);
  const InputCuts found = input_parts(*graph);
  EXPECT_EQ(found, (InputCuts{{"good.weight", {8, 8}}}));
  // What else reads the concat still does.
  const auto parts = cut_inputs(*graph, found);
  EXPECT_TRUE(parts->outputs().contains("both"));
  EXPECT_TRUE(parts->weights().contains("twice.weight"));
  EXPECT_EQ(count_ops(*parts, Op::kLinear), count_ops(*graph, Op::kLinear) + 1);
}

}  // namespace
}  // namespace halftone
