// Sums that products make on their way give what they gave apart, wherever the result lies.
#include "halftone/passes/addends.h"

#include <gtest/gtest.h>

#include "halftone/kernels/quantize.h"
#include "halftone/passes/gelu.h"
#include "halftone/passes/plan.h"
#include "tests/support/backend.h"
#include "tests/support/count_ops.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::count_ops;
using test::floats;
using test::random_tensor;

double tolerance(DType dtype) { return dtype == DType::kF32 ? 1e-5 : 8e-3; }

// What the graph gives with its sums folded, held to what it gave before.
void expect_same(const std::shared_ptr<Graph>& graph, const Weights& weights,
                 const std::map<std::string, Tensor>& inputs, int sums_left,
                 const std::string& what) {
  const std::shared_ptr<Graph> folded = fold_addends(*graph);
  EXPECT_EQ(count_ops(*folded, Op::kAdd), sums_left) << what;
  const auto apart = test::tested_program(graph, weights).run(inputs);
  Program program = test::tested_program(folded, weights);
  for (int run = 0; run < 2; ++run) {  // what was measured on the first one has left no trace
    const auto once = program.run(inputs);
    for (const auto& [name, tensor] : apart) {
      EXPECT_LE(test::relative_error(floats(once.at(name)), floats(tensor)),
                tolerance(tensor.dtype()))
          << what << ", " << name << ", run " << run;
    }
  }
}

// A linear with an adapter: both products and their sum, in every format, with a bias or none, for
// many rows and for few.
TEST(FoldAddends, AdaptersAddToTheLinear) {
  for (const auto& format : {formats::bf16, formats::fp8, formats::fp8_tensor, formats::mxfp8}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t rows : {160, 1}) {
        for (const bool bias : {false, true}) {
          auto graph = std::make_shared<Graph>();
          const Value x = graph->input("x", {{2, rows, 64}, dtype, {}});
          ValueType type{{96, 64}, dtype, {}};
          if (format.quantized()) type.quantized = format;
          const Value w = graph->weight("w", type);
          const Value b = graph->weight("b", {{96}, dtype, {}});
          const Value down = graph->weight("down", {{16, 64}, DType::kF32, {}});
          const Value up = graph->weight("up", {{96, 16}, DType::kF32, {}});
          Value in = x;
          if (format.quantized()) in = quantize(x, format);
          graph->output("y", linear(in, w, bias ? std::optional(b) : std::nullopt) +
                                 linear(linear(x, down), up));
          Weights weights = {{"w", random_tensor({96, 64}, 1, dtype)},
                             {"b", random_tensor({96}, 2, dtype)},
                             {"down", random_tensor({16, 64}, 3)},
                             {"up", random_tensor({96, 16}, 4)}};
          if (format.quantized()) {
            weights["w"] =
                quantize(cpu_kernels(), random_tensor({96, 64}, 1, dtype), format, {}, {1});
          }
          expect_same(graph, weights, {{"x", random_tensor({2, rows, 64}, 5, dtype)}}, 0,
                      fmt::format("{} {} {} rows{}", format.name, name_of(dtype), rows,
                                  bias ? " with bias" : ""));
        }
      }
    }
  }
}

// A gradient that comes from several linears: each adds to what is there.
TEST(FoldAddends, GradientsOfSeveralLinears) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool rounded : {false, true}) {
      auto graph = std::make_shared<Graph>();
      const Value dy = graph->input("dy", {{1, 96, 64}, dtype, {}});
      const Value flat = reshape(dy, {96, 64});
      Weights weights;
      std::optional<Value> sum;
      for (int i = 0; i < 3; ++i) {
        const std::string name = fmt::format("w{}", i);
        const Value w = graph->weight(name, {{64, 32}, dtype, formats::fp8});
        weights[name] =
            quantize(cpu_kernels(), random_tensor({64, 32}, static_cast<uint64_t>(i), dtype),
                     formats::fp8, {}, {1});
        LinearInputGradAttributes how;
        if (rounded) how.gradients = formats::fp8_e5m2;
        const Value dx = reshape(
            graph->add(Op::kLinearInputGrad, {flat, w}, how, {{96, 32}, dtype, {}}), {1, 96, 32});
        sum = sum ? *sum + dx : dx;
      }
      const Value a = graph->weight("a", {{64, 32}, DType::kF32, {}});
      weights["a"] = random_tensor({64, 32}, 7);
      graph->output("dx", *sum + reshape(matmul(flat, a, false, false), {1, 96, 32}));
      expect_same(graph, weights, {{"dy", random_tensor({1, 96, 64}, 8, dtype)}}, 0,
                  fmt::format("{} {}", name_of(dtype), rounded ? "rounded" : "wide"));
    }
  }
}

class Places : public testing::Test {
 protected:
  const ValueType matrix_{{8, 8}, DType::kF32, {}};
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  Value x_ = graph_->input("x", matrix_);
  Value w_ = graph_->weight("w", matrix_);

  // Where the one product with an operand to add puts its result.
  struct Place {
    bool in_place = false;
    int64_t arena_bytes = 0;
  };
  static Place place(const Graph& graph) {
    const MemoryPlan plan = plan_memory(graph);
    for (const Node& node : graph.nodes()) {
      if (!adds_operand(node)) continue;
      return {plan.storage[node.outputs[0]] == plan.storage[node.inputs.back()], plan.arena_bytes};
    }
    ADD_FAILURE() << "no product adds";
    return {};
  }
  Place folded() { return place(*fold_addends(*graph_)); }
};

TEST_F(Places, WhatEndsInASumIsAddedToInPlace) {
  graph_->output("y", affine(x_, 2, 0) + matmul(x_, w_, false, false));
  const Place found = folded();
  EXPECT_TRUE(found.in_place);
  EXPECT_EQ(found.arena_bytes, 256);  // of one matrix
}

TEST_F(Places, WhatIsReadLaterStays) {
  const Value before = affine(x_, 2, 0);
  const Value sum = before + matmul(x_, w_, false, false);
  graph_->output("y", sum * before);
  EXPECT_FALSE(folded().in_place);
}

TEST_F(Places, ViewsThatAreReadLaterCount) {
  const Value before = affine(x_, 2, 0), view = reshape(before, {64});
  const Value sum = before + matmul(x_, w_, false, false);
  graph_->output("y", reshape(sum, {64}) * view);
  EXPECT_FALSE(folded().in_place);
}

TEST_F(Places, WhatTheProductReadsItselfStays) {
  const Value before = affine(x_, 2, 0);
  graph_->output("y", before + matmul(before, w_, false, false));
  EXPECT_FALSE(folded().in_place);
}

TEST_F(Places, InputsWeightsAndOutputsStay) {
  graph_->output("y", x_ + matmul(x_, w_, false, false));
  EXPECT_FALSE(folded().in_place);
  auto other = std::make_shared<Graph>();
  const Value x = other->input("x", matrix_), w = other->weight("w", matrix_);
  const Value before = affine(x, 2, 0);
  other->output("before", before);
  other->output("y", before + matmul(x, w, false, false));
  EXPECT_FALSE(place(*fold_addends(*other)).in_place);
}

TEST_F(Places, TheLargerOfTwoProductsAdds) {
  const Value thin = graph_->weight("thin", {{8, 2}, DType::kF32, {}});
  const Value small = matmul(matmul(x_, thin, false, false), thin, false, true);
  graph_->output("y", matmul(x_, w_, false, false) + small);
  const auto graph = fold_addends(*graph_);
  EXPECT_EQ(count_ops(*graph, Op::kAdd), 0);
  const Node& last = graph->nodes().back();
  ASSERT_TRUE(adds_operand(last));
  EXPECT_EQ(graph->values()[last.inputs[1]].name, "w");
}

// Sums that are not of two equal shapes, products that others read too or that GELU follows.
TEST_F(Places, OtherSumsStay) {
  const Value row = graph_->input("row", {{1, 8}, DType::kF32, {}});
  graph_->output("broadcast", matmul(x_, w_, false, false) + row);
  const Value shared = matmul(x_, w_, false, true);
  graph_->output("shared", (shared + x_) * shared);
  graph_->output("gelu", gelu(linear(x_, w_)) + x_);
  EXPECT_EQ(count_ops(*fold_addends(*fold_gelu(*graph_)), Op::kAdd), 3);
}

}  // namespace
}  // namespace halftone
