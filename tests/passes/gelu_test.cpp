#include "halftone/passes/gelu.h"

#include <gtest/gtest.h>

#include "halftone/kernels/quantize.h"
#include "halftone/passes/lower.h"
#include "halftone/passes/quantize.h"
#include "halftone/passes/swizzle.h"
#include "tests/support/backend.h"
#include "tests/support/count_ops.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::count_ops;

using test::random_tensor;

// Products with GELU and with a bias or none, in bf16 and FP8, agree with GELU on its own.
TEST(FoldGelu, ProductsApplyIt) {
  for (const bool bias : {false, true}) {
    for (const auto& format : {formats::bf16, formats::fp8, formats::fp8_tensor}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        auto graph = std::make_shared<Graph>();
        const Value x = graph->input("x", {{2, 160, 64}, dtype, {}});
        const Value w = graph->weight("w", {{96, 64}, dtype, {}});
        const Value b = graph->weight("b", {{96}, dtype, {}});
        graph->output("y", gelu(linear(x, w, bias ? std::optional(b) : std::nullopt)));
        std::shared_ptr<Graph> lowered = graph;
        Weights weights = {{"w", random_tensor({96, 64}, 1, dtype)},
                           {"b", random_tensor({96}, 2, dtype)}};
        if (format.quantized()) {
          QuantizeRecipe recipe;
          recipe.format = format;
          lowered = lower(*quantize_linears(*graph, recipe).graph);
          weights["w"] =
              quantize(cpu_kernels(), random_tensor({96, 64}, 1, dtype), format, {}, {1});
        }
        const auto folded = fold_gelu(*lowered);
        EXPECT_EQ(count_ops(*folded, Op::kUnary), 0);
        const std::map<std::string, Tensor> inputs = {{"x", random_tensor({2, 160, 64}, 3, dtype)}};
        const auto apart = test::tested_program(lowered, weights).run(inputs);
        const auto once = test::tested_program(folded, weights).run(inputs);
        EXPECT_LE(test::relative_error(test::floats(once.at("y")), test::floats(apart.at("y"))),
                  dtype == DType::kF32 ? 1e-5 : 8e-3)
            << format.name << (bias ? " with bias" : "");
      }
    }
  }
}

TEST(FoldGelu, WhatAQuantizerTakesAlongOrOthersReadStays) {
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{1, 8, 32}, DType::kF32, {}});
  const auto weight = [&](const char* name) {
    return graph->weight(name, {{32, 32}, DType::kF32, {}});
  };
  const Value before = linear(x, weight("a"));
  graph->output("both", gelu(before) + before);
  graph->output("quantized", linear(gelu(linear(x, weight("b"))), weight("c")));
  QuantizeRecipe recipe;
  recipe.format = formats::fp8;
  recipe.include = {"c"};
  EXPECT_EQ(count_ops(*fold_gelu(*lower(*quantize_linears(*graph, recipe).graph)), Op::kUnary), 2);
}

TEST(SwizzleBlockScales, OnlyWhereEveryReaderTakesThem) {
  const auto swizzled = [](const Format& format, std::optional<float> scale, int64_t outputs) {
    auto graph = std::make_shared<Graph>();
    const Value x = graph->input("x", {{2, 40, 64}, DType::kBF16, {}});
    graph->output("y", linear(x, graph->weight("w", {{outputs, 64}, DType::kBF16, {}})));
    QuantizeRecipe recipe;
    recipe.format = format;
    if (scale) recipe.input_scales = {{"w", *scale}};
    const auto changed = swizzle_block_scales(*lower(*quantize_linears(*graph, recipe).graph));
    return changed->values()[changed->nodes()[0].outputs[0]].type.quantized->swizzled;
  };
  EXPECT_TRUE(swizzled(formats::mxfp8, {}, 32));
  EXPECT_TRUE(swizzled(formats::nvfp4, 0.01f, 32));
  EXPECT_FALSE(swizzled(formats::nvfp4, {}, 32));  // a global scale for each item
  EXPECT_FALSE(swizzled(formats::mxfp8, {}, 40));  // not a size for tensor cores
  EXPECT_FALSE(swizzled(formats::fp8, {}, 32));
}

}  // namespace
}  // namespace halftone
