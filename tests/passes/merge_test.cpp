// Linears on one input become one product, and give what they gave apart.
#include "halftone/passes/merge.h"

#include <gtest/gtest.h>

#include "halftone/kernels/quantize.h"
#include "halftone/passes/fuse.h"
#include "halftone/passes/lower.h"
#include "halftone/passes/quantize.h"
#include "tests/support/backend.h"
#include "tests/support/count_ops.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::count_ops;

using test::floats;
using test::random_tensor;

// q, k and v as attention takes them.
std::shared_ptr<Graph> attention_graph(DType dtype) {
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{2, 40, 64}, dtype, {}});
  const auto project = [&](const char* name) {
    const Value w = graph->weight(name, {{64, 64}, DType::kF32, {}});
    return reshape(linear(x, w), {2, 40, 2, 32});
  };
  const Value q = project("q"), k = project("k"), v = project("v");
  graph->output("y", attention(q, k, v, {}, {0.2f, false}));
  return graph;
}

using Stacks = std::vector<WeightStack>;

TEST(Merge, ThreeProjectionsAreOneProduct) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto graph = attention_graph(dtype);
    const auto merged = merge_linears(*graph);
    EXPECT_EQ(count_ops(*merged, Op::kLinear), 1);
    EXPECT_EQ(weight_stacks(*merged), (Stacks{{"q", "k", "v"}}));
    EXPECT_EQ(merged->weights().size(), 1u);  // the parts are not asked for
    Weights weights;
    uint64_t seed = 1;
    for (const char* name : {"q", "k", "v"}) {
      weights.emplace(name, random_tensor({64, 64}, seed++, DType::kBF16));
    }
    const std::map<std::string, Tensor> inputs = {{"x", random_tensor({2, 40, 64}, 9, dtype)}};
    const auto apart = test::tested_program(graph, weights).run(inputs).at("y");
    const auto together = test::tested_program(merged, weights).run(inputs);
    EXPECT_LE(test::relative_error(floats(together.at("y")), floats(apart)),
              dtype == DType::kF32 ? 1e-6 : 1e-3);
  }
}

TEST(Merge, OnlyWhatCanBeStacked) {
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{1, 8, 64}, DType::kF32, {}});
  const auto weight = [&](const char* name, int64_t rows) {
    return graph->weight(name, {{rows, 64}, DType::kF32, {}});
  };
  graph->output("a", linear(x, weight("a", 32)));
  graph->output("b", linear(x, weight("b", 32)));
  graph->output("wider", linear(x, weight("wider", 64)));
  const Value bias = graph->weight("bias", {{32}, DType::kF32, {}});
  graph->output("biased", linear(x, weight("biased", 32), bias));
  graph->output("other", linear(x + x, weight("other", 32)));
  EXPECT_EQ(weight_stacks(*merge_linears(*graph)), (Stacks{{"a", "b"}}));
  const auto never = [](const std::string&, const std::string&) { return false; };
  EXPECT_TRUE(weight_stacks(*merge_linears(*graph, never)).empty());

  // A scale of a whole tensor would become two.
  for (const Format& format : {formats::fp8_tensor, formats::nvfp4, formats::fp8, formats::mxfp8}) {
    QuantizeRecipe recipe;
    recipe.format = format;
    const auto lowered = lower(*quantize_linears(*graph, recipe).graph);
    const bool one_scale = format.span == ScaleSpan::kTensor || format.global_scale;
    EXPECT_EQ(weight_stacks(*merge_linears(*lowered)).empty(), one_scale) << format.name;
  }
}

// What every block takes from the condition is one product for all of them.
TEST(Merge, ModulationOfAllBlocksIsOneProduct) {
  auto graph = std::make_shared<Graph>();
  const Value c = graph->input("c", {{2, 32}, DType::kF32, {}});
  const Value x = graph->input("x", {{2, 5, 16}, DType::kF32, {}});
  Value y = x;
  Weights weights;
  for (const char* name : {"a", "b", "c"}) {
    const auto region = graph->region("block", name);
    const std::string prefix = name;
    const Value w = graph->weight(prefix + ".w", {{32, 32}, DType::kF32, {}});
    const Value b = graph->weight(prefix + ".b", {{32}, DType::kF32, {}});
    weights.emplace(prefix + ".w", random_tensor({32, 32}, weights.size()));
    weights.emplace(prefix + ".b", random_tensor({32}, weights.size()));
    const auto parts = split(reshape(linear(c, w, b), {2, 1, 32}), 2, 2);
    y = y * (1.0f + parts[0]) + tanh(parts[1]);
  }
  graph->output("y", y);
  const auto merged = merge_linears(*graph);
  EXPECT_EQ(weight_stacks(*merged), (Stacks{{"a.b", "b.b", "c.b"}, {"a.w", "b.w", "c.w"}}));
  const auto fused = fuse(*merged);
  EXPECT_EQ(count_ops(*fused, Op::kLinear), 1);
  // Modulation of all blocks from its columns, and the blocks.
  EXPECT_EQ(count_ops(*fused, Op::kFusedRows), 2);
  const std::map<std::string, Tensor> inputs = {{"c", random_tensor({2, 32}, 50)},
                                                {"x", random_tensor({2, 5, 16}, 51)}};
  const auto apart = test::tested_program(graph, weights).run(inputs).at("y");
  EXPECT_LE(test::relative_error(floats(test::tested_program(fused, weights).run(inputs).at("y")),
                                 floats(apart)),
            1e-6);
}

// Columns that only attention reads stay where they are, where the backend can read them there.
TEST(Merge, AttentionReadsColumnsInPlace) {
  const auto merged = merge_linears(*attention_graph(DType::kBF16));
  const MemoryPlan copied = plan_memory(*merged), in_place = plan_memory(*merged, true);
  const auto runs = [](const MemoryPlan& plan) {
    return std::count(plan.runs.begin(), plan.runs.end(), true);
  };
  EXPECT_EQ(runs(copied), 5);    // the product, three copies, attention
  EXPECT_EQ(runs(in_place), 2);  // the product, attention
  const Node& attention = merged->nodes().back();
  EXPECT_EQ(in_place.token_stride[attention.inputs[2]], 192);
  EXPECT_EQ(in_place.offset[attention.inputs[2]] - in_place.offset[attention.inputs[0]], 256);
}

}  // namespace
}  // namespace halftone
