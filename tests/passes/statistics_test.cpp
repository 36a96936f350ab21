// Attention's gradient with what the forward pass hands over is the gradient without it.
#include "halftone/passes/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/backend.h"
#include "tests/support/count_ops.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::floats;
using test::random_tensor;

class AttentionStatistics : public testing::TestWithParam<std::tuple<DType, bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(, AttentionStatistics,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16),
                                          testing::Bool(), testing::Bool()),
                         [](const auto& tested) {
                           return std::string(name_of(std::get<0>(tested.param))) +
                                  (std::get<1>(tested.param) ? "lengths" : "") +
                                  (std::get<2>(tested.param) ? "bias" : "");
                         });

TEST_P(AttentionStatistics, ChangeNoGradient) {
  const auto [dtype, with_lengths, with_bias] = GetParam();
  const Shape shape{2, 96, 3, 64};
  const auto graph = std::make_shared<Graph>();
  std::map<std::string, Tensor> inputs;
  std::vector<Value> qkv;
  for (const char* name : {"q", "k", "v"}) {
    inputs[name] = random_tensor(shape, inputs.size() + 1, dtype);
    qkv.push_back(graph->input(name, {shape, dtype, {}}));
  }
  std::optional<Value> lengths;
  if (with_lengths) {
    inputs["lengths"] = test::int_tensor({96, 41}, {2});
    lengths = graph->input("lengths", {{2}, DType::kI32, {}});
  }
  std::optional<Value> bias;
  if (with_bias) {
    inputs["bias"] = random_tensor({3, 96, 96}, 8, dtype);
    bias = graph->input("bias", {{3, 96, 96}, dtype, {}});
    qkv.push_back(*bias);
  }
  const Value y = attention(qkv[0], qkv[1], qkv[2], lengths, {0.125f, false}, bias);
  const Value r = graph->constant("r", random_tensor(shape, 9, dtype));
  const auto gradients = differentiate(sum_to(y * r, {1}), qkv);
  graph->output("y", y);
  for (size_t i = 0; i < qkv.size(); ++i) graph->output("g" + std::to_string(i), gradients[i]);
  const auto handed = hand_over_statistics(*graph);
  int changed = 0;
  for (const Node& node : handed->nodes()) {
    const size_t operands = 3 + (with_lengths ? 1 : 0) + (with_bias ? 1 : 0);
    if (node.op == Op::kAttention) {
      EXPECT_EQ(node.outputs.size(), 2u);
    }
    if (node.op != Op::kAttentionGrad) continue;
    EXPECT_EQ(node.inputs.size(), operands + 3);
    ++changed;
  }
  EXPECT_EQ(changed, 1);
  const auto before = test::tested_program(graph, {}).run(inputs);
  const auto after = test::tested_program(handed, {}).run(inputs);
  for (const auto& [name, tensor] : before) {
    EXPECT_LE(test::relative_error(floats(after.at(name)), floats(tensor)),
              dtype == DType::kF32 ? 1e-6 : 2e-3)
        << name;
  }
}

}  // namespace
}  // namespace halftone
