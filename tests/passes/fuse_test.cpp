// Fused rows give the same bits as node by node, and orders that cannot be merged are not.
#include "halftone/passes/fuse.h"

#include <gtest/gtest.h>

#include <array>

#include "halftone/kernels/quantize.h"
#include "halftone/passes/autodiff.h"
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

void expect_same_bits(const std::shared_ptr<Graph>& graph, const Weights& weights = {}) {
  std::map<std::string, Tensor> inputs;
  uint64_t seed = 10;
  for (const auto& [name, value] : graph->inputs()) {
    inputs.emplace(name, random_tensor(value.shape(), seed++, value.dtype()));
  }
  const auto apart = test::tested_program(graph, weights).run(inputs);
  const auto fused = test::tested_program(test::tested_compile(*graph), weights).run(inputs);
  ASSERT_EQ(apart.size(), fused.size());
  for (const auto& [name, tensor] : apart)
    EXPECT_LE(test::relative_error(floats(fused.at(name)), floats(tensor)),
              test::compile_tolerance(tensor.dtype()))
        << name;
}

class Fuse : public testing::TestWithParam<DType> {
 protected:
  Value input(const char* name, const Shape& shape) {
    return graph_->input(name, {shape, GetParam(), {}});
  }
  Value f32(const char* name, const Shape& shape) {
    return graph_->input(name, {shape, DType::kF32, {}});
  }
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
};
INSTANTIATE_TEST_SUITE_P(, Fuse, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(Fuse, NormGateResidualNormModulationAreOneNodeWithTwoResults) {
  const Value x = input("x", {2, 37, 96}), branch = input("branch", {2, 37, 96});
  const Value gate = f32("gate", {2, 1, 96}), scale = f32("scale", {2, 1, 96});
  const Value w1 = f32("w1", {96}), w2 = f32("w2", {96});
  const Value residual = x + rms_norm(branch, w1, 1e-5f) * gate;
  graph_->output("x", residual);
  graph_->output("normed", rms_norm(residual, w2, 1e-5f) * scale);
  const auto fused = fuse(*graph_);
  ASSERT_EQ(fused->nodes().size(), 1u);
  EXPECT_EQ(fused->nodes()[0].op, Op::kFusedRows);
  EXPECT_EQ(fused->nodes()[0].outputs.size(), 2u);
  expect_same_bits(graph_);
}

TEST_P(Fuse, EveryRowOperation) {
  const Value x = input("x", {3, 11, 4, 16});
  const Value c = f32("c", {3, 11, 8}), s = f32("s", {3, 11, 8}), w = f32("w", {16});
  const Value turned = rope(rms_norm(x, w, 1e-6f), c, s, {RopeLayout::kInterleaved, false});
  const Value back = rope(turned, c, s, {RopeLayout::kHalves, true});
  graph_->output("a", silu_mul(back, turned));
  graph_->output("b", gelu(tanh(affine(layer_norm(back, 1e-6f), 1.5f, 0.2f))));
  graph_->output("c", cast(silu(back) + sigmoid(back), DType::kF32) * cast(x, DType::kF32));
  const auto fused = fuse(*graph_);
  // A cast of an input starts a chain of its own where it is one.
  EXPECT_LE(fused->nodes().size(), 2u);
  expect_same_bits(graph_);
}

TEST_P(Fuse, QuantizingByRowOrBlockIsFusedAndByTensorIsNot) {
  for (const Format& format : {formats::fp8, formats::mxfp8, formats::nvfp4, formats::fp8_tensor}) {
    graph_ = std::make_shared<Graph>();
    const Value x = input("x", {2, 40, 64}), scale = f32("scale", {2, 1, 64});
    const Value w = f32("norm", {64});
    const Value weight = graph_->weight("a.weight", {{32, 64}, DType::kF32, {}});
    graph_->output("y", linear(rms_norm(x, w, 1e-5f) * scale, weight));
    QuantizeRecipe recipe;
    recipe.format = format;
    const auto lowered = lower(*quantize_linears(*graph_, recipe).graph);
    const bool by_row = format == formats::fp8 || format == formats::mxfp8;
    EXPECT_EQ(count_ops(*fuse(*lowered), Op::kQuantize), by_row ? 0 : 1) << format.name;
    const Weights weights = {
        {"a.weight", quantize(cpu_kernels(), random_tensor({32, 64}, 5), format, {}, {1})}};
    expect_same_bits(lowered, weights);
  }
}

// What leads to a piece is computed where the piece lies: nothing is copied before the quantizer.
// A norm with weight and bias, as transformers of U-Nets have it, the sum that it reads, and what
// its products read in 8 bits: one pass over memory.
TEST_P(Fuse, AnAffineNormAndItsQuantizerAreOneNode) {
  for (const Format& format : {formats::fp8, formats::mxfp8}) {
    auto graph = std::make_shared<Graph>();
    const Value x = graph->input("x", {{2, 9, 96}, GetParam(), {}});
    const Value y = graph->input("y", {{2, 9, 96}, GetParam(), {}});
    const auto weight = [&](const char* name, const Shape& shape, const Format* as) {
      return graph->weight(name,
                           {shape, GetParam(), as == nullptr ? std::nullopt : std::optional(*as)});
    };
    const Value sum = x + y;
    const Value normed =
        layer_norm(sum, 1e-5f) * weight("weight", {96}, nullptr) + weight("bias", {96}, nullptr);
    const Value in = quantize(normed, format);
    graph->output("q", linear(in, weight("q", {32, 96}, &format)));
    graph->output("k", linear(in, weight("k", {64, 96}, &format)));
    graph->output("sum", sum);
    const auto compiled = test::tested_compile(*graph);
    EXPECT_EQ(count_ops(*compiled, Op::kFusedRows), 1) << format.name;
    for (const Op op : {Op::kAdd, Op::kMul, Op::kLayerNorm, Op::kQuantize}) {
      EXPECT_EQ(count_ops(*compiled, op), 0) << format.name;
    }
    Weights weights = {{"weight", random_tensor({96}, 1, GetParam())},
                       {"bias", random_tensor({96}, 2, GetParam())}};
    for (const auto& [name, rows] : {std::pair{"q", 32}, std::pair{"k", 64}}) {
      weights[name] =
          quantize(cpu_kernels(), random_tensor({rows, 96}, 3, GetParam()), format, {}, {2});
    }
    expect_same_bits(graph, weights);
  }
}

TEST_P(Fuse, PiecesOfAConcatAreOneChainWithWhatFollows) {
  for (const auto& [first, second] : {std::pair<int64_t, int64_t>{64, 192}, {192, 64}, {13, 51}}) {
    for (const bool swapped : {false, true}) {
      graph_ = std::make_shared<Graph>();
      const Value whole = input("whole", {2, 21, 2 * second});
      const Value product =
          silu_mul(slice(whole, 2, second, 2 * second), slice(whole, 2, 0, second));
      const Value other = input("other", {2, 21, first});
      const Value both = swapped ? concat({product, other}, 2) : concat({other, product}, 2);
      graph_->output("both", both);
      graph_->output("twice", both * f32("scale", {2, 1, first + second}));
      const auto fused = fuse(*graph_);
      EXPECT_EQ(count_ops(*fused, Op::kFusedRows), 1);
      EXPECT_EQ(count_ops(*fused, Op::kConcat) + count_ops(*fused, Op::kSiluMul), 0);
      expect_same_bits(graph_);
    }
  }
  graph_ = std::make_shared<Graph>();
  const Value x = input("x", {2, 40, 32}), gate = f32("gate", {2, 1, 96}),
              y = input("y", {2, 40, 96});
  const Value weight = graph_->weight("a.weight", {{32, 128}, DType::kF32, {}});
  graph_->output("y", linear(concat({silu(x), cast(y, GetParam()) * gate}, 2), weight));
  QuantizeRecipe recipe;
  recipe.format = formats::fp8;
  const auto lowered = lower(*quantize_linears(*graph_, recipe).graph);
  EXPECT_EQ(count_ops(*fuse(*lowered), Op::kQuantize) + count_ops(*fuse(*lowered), Op::kConcat), 0);
  expect_same_bits(
      lowered,
      {{"a.weight", quantize(cpu_kernels(), random_tensor({32, 128}, 5), formats::fp8, {}, {1})}});
}

// Pieces that share an input, are needed elsewhere or are one value twice.
// An adapter beside q parts it from k, whose norm it shared a chain with: a row without an adapter
// is to keep its bits.
TEST_P(Fuse, ANormAloneHasTheBitsThatItHasAmongOthers) {
  const Tensor x = random_tensor({2, 32, 64}, 1, GetParam()), w = random_tensor({16}, 2);
  const auto normed = [&](bool layer, bool others) {
    auto graph = std::make_shared<Graph>();
    const Value both = graph->input("x", {x.shape(), x.dtype(), {}});
    const Value weight = graph->input("w", {w.shape(), w.dtype(), {}});
    const auto norm = [&](int64_t begin) {
      const Value half = reshape(slice(both, 2, begin, begin + 32), {2, 32, 2, 16});
      return layer ? layer_norm(half, 1e-6f) : rms_norm(half, weight, 1e-6f);
    };
    // Alone, on columns that were copied out.
    Value q = reshape(slice(both, 2, 0, 32), {2, 32, 2, 16});
    if (!others) graph->output("q", q);
    graph->output("y", others  ? norm(0)
                       : layer ? layer_norm(q, 1e-6f)
                               : rms_norm(q, weight, 1e-6f));
    if (others) graph->output("k", norm(32));
    return floats(
        test::tested_program(test::tested_compile(*graph), {}).run({{"x", x}, {"w", w}}).at("y"));
  };
  for (const bool layer : {false, true}) EXPECT_EQ(normed(layer, false), normed(layer, true));
}

TEST_P(Fuse, PiecesThatCannotBePartOfAChainStayOutside) {
  const Value x = input("x", {2, 21, 64}), y = input("y", {2, 21, 32});
  const Value needed = tanh(y);
  graph_->output("needed", needed);
  graph_->output("a", affine(concat({silu(x), tanh(x)}, 2), 2, 1));
  graph_->output("b", affine(concat({x, sigmoid(x)}, 2), 2, 1));
  graph_->output("c", affine(concat({y, y}, 2), 2, 1));
  graph_->output("d", affine(concat({needed, x}, 2), 2, 1));
  graph_->output("e", concat({x, y, x}, 2));
  graph_->output("f", affine(concat({x, silu(x)}, 1), 2, 1));
  expect_same_bits(graph_);
}

TEST_P(Fuse, QuantizingWithAStaticScaleIsFusedInEveryFormat) {
  for (const Format& format : {formats::fp8, formats::nvfp4, formats::fp8_tensor}) {
    for (const int64_t width : {64, 80}) {
      graph_ = std::make_shared<Graph>();
      const Value x = input("x", {2, 40, width}), scale = f32("scale", {2, 1, width});
      const Value weight = graph_->weight("a.weight", {{32, width}, DType::kF32, {}});
      graph_->output("y", linear(gelu(x) * scale, weight));
      QuantizeRecipe recipe;
      recipe.format = format;
      recipe.input_scales = {{"a.weight", 0.004f}};
      const auto lowered = lower(*quantize_linears(*graph_, recipe).graph);
      EXPECT_EQ(count_ops(*fuse(*lowered), Op::kQuantize), 0) << format.name;
      const Weights weights = {
          {"a.weight", quantize(cpu_kernels(), random_tensor({32, width}, 5), format, {}, {1})}};
      expect_same_bits(lowered, weights);
    }
  }
}

// x -> a -> linear -> + a: the sum cannot join a's node, because the linear stands between.
TEST_P(Fuse, WhatDependsOnTheGroupThroughAnotherNodeStaysOutside) {
  const Value x = input("x", {1, 16, 32});
  const Value w = f32("w", {32}), m = f32("m", {32, 32});
  const Value a = affine(x, 2, 1);
  const Value b = rms_norm(a, w, 1e-5f);
  const Value c = linear(b, m);
  const Value d = c + a;
  graph_->output("y", rms_norm(d, w, 1e-5f) + b);
  const auto fused = fuse(*graph_);
  EXPECT_EQ(fused->nodes().size(), 3u);  // {a, b}, linear, {d, norm, sum}
  expect_same_bits(graph_);
}

// Two chains that feed each other through linears, and nodes between them in the graph's order.
TEST_P(Fuse, ChainsThatNeedEachOtherKeepAnOrder) {
  const Value x = input("x", {1, 8, 16});
  const Value m = f32("m", {16, 16});
  const Value a = affine(x, 2, 0), b = tanh(linear(a, m));
  const Value c = affine(a, 1, 1), d = silu(b);
  const Value e = linear(c, m) + d, f = linear(d, m) + c;
  graph_->output("y", e * f + a * b);
  expect_same_bits(graph_);
}

// Heads are normed and turned; the gradient comes back through both.
TEST_P(Fuse, GradientsOfNormsAreStepsWhereWeightsAreFrozen) {
  const Value x = input("x", {2, 9, 4, 16}), dy = input("dy", {2, 9, 4, 16});
  const Value c = f32("c", {2, 9, 8}), s = f32("s", {2, 9, 8}), w = f32("w", {16});
  const Value all = f32("all", {64});
  const Value turned = rope(rms_norm(x, w, 1e-6f), c, s, {RopeLayout::kInterleaved, false});
  const Value normed = rms_norm(reshape(turned, {2, 9, 64}), all, 1e-5f);
  const Value loss = sum_to(normed * reshape(dy, {2, 9, 64}), {1});
  graph_->output("dx", differentiate(loss, std::array{x})[0]);
  const auto compiled = test::tested_compile(*graph_);
  EXPECT_EQ(count_ops(*compiled, Op::kRmsNormGrad), 0);
  expect_same_bits(graph_);
}
TEST_P(Fuse, GradientsOfNormsStayOutsideWhereTheirWeightsLearn) {
  const Value x = input("x", {2, 9, 32}), w = f32("w", {32});
  const Value loss = sum_to(tanh(rms_norm(tanh(x), w, 1e-5f)), {1});
  const auto gradients = differentiate(loss, std::array{x, w});
  graph_->output("dx", gradients[0]);
  graph_->output("dw", gradients[1]);
  EXPECT_EQ(count_ops(*test::tested_compile(*graph_), Op::kRmsNormGrad), 1);
  expect_same_bits(graph_);
}

// What SwiGLU's gradient needs of the forward pass is one chain, what comes from behind another;
// they meet, and are one kernel.
TEST_P(Fuse, ChainsOfAGradientThatMeetAreOne) {
  const Value gate = input("gate", {2, 9, 32}), up = input("up", {2, 9, 32});
  const Value dy = input("dy", {2, 9, 32}), more = input("more", {2, 9, 32});
  const Value loss = sum_to(silu_mul(gate, up) * (dy + more), {1});
  const auto gradients = differentiate(loss, std::array{gate, up});
  graph_->output("dgate", gradients[0]);
  graph_->output("dup", gradients[1]);
  const auto compiled = test::tested_compile(*graph_);
  EXPECT_EQ(count_ops(*compiled, Op::kFusedRows), 1);
  expect_same_bits(graph_);
}

// Many sums before a norm: a chain that holds whole rows takes as many as the backend says, and the
// others are one of their own.
TEST_P(Fuse, ChainsThatHoldWholeRowsHaveALimit) {
  std::vector<Value> parts;
  for (int i = 0; i < 9; ++i) parts.push_back(input(std::to_string(i).c_str(), {2, 9, 32}));
  Value sum = parts[0];
  for (int i = 1; i < 9; ++i) sum = sum + parts[static_cast<size_t>(i)];
  graph_->output("y", rms_norm(sum, f32("w", {32}), 1e-5f) * sum);
  EXPECT_EQ(count_ops(*fuse(*graph_, {16, 24, 24}), Op::kFusedRows), 1);
  const auto limited = fuse(*graph_, {16, 24, 8});
  EXPECT_EQ(count_ops(*limited, Op::kFusedRows), 2);
  EXPECT_EQ(limited->nodes().size(), 2u);
  expect_same_bits(graph_);
}

// Two chains of a gradient that meet, but one of them also reaches the other through a product.
TEST_P(Fuse, ChainsOfAGradientThatNeedEachOtherStayTwo) {
  const Value x = input("x", {1, 8, 16}), m = f32("m", {16, 16});
  const Value a = tanh(x), b = silu(linear(a, m));
  const Value loss = sum_to(a * b * sigmoid(linear(b, m)), {1});
  graph_->output("dx", differentiate(loss, std::array{x})[0]);
  expect_same_bits(graph_);
}

}  // namespace
}  // namespace halftone
