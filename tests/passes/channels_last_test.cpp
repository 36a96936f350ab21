// Pictures with their channels last give what they gave with their channels first, and so do their
// gradients; permutations are left at borders alone.
#include "halftone/passes/channels_last.h"

#include <gtest/gtest.h>

#include "halftone/passes/addends.h"
#include "halftone/passes/autodiff.h"
#include "halftone/passes/rewrite.h"
#include "tests/support/backend.h"
#include "tests/support/count_ops.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::count_ops;
using test::floats;
using test::random_tensor;
using test::relative_error;

// A network of all that the pass knows: a skip, a norm with SiLU behind it, a time that moves
// channels, tokens that are attended to, and other resolutions.
class PictureNetwork {
 public:
  explicit PictureNetwork(DType dtype, int64_t batch = 2) : dtype_(dtype), batch_(batch) {
    Value x = cast(input("x", {batch, 3, 8, 12}), dtype);
    x = conv("in", x, 8, 3, {1, {1, 1, 1, 1}});
    const Value skip = x;
    Value y = conv("first", silu(norm("norm1", x)), 8, 3, {1, {1, 1, 1, 1}});
    y = y + reshape(cast(input("time", {batch, 8}), dtype), {batch, 8, 1, 1});
    x = x + conv("second", silu(norm("norm2", y)), 8, 3, {1, {1, 1, 1, 1}});
    x = tokens(x);
    x = conv("down", x, 8, 3, {2, {0, 0, 1, 1}});
    x = conv("up", upsample2x(x), 8, 3, {1, {1, 1, 1, 1}});
    x = concat({x, skip}, 1);
    x = conv("shortcut", x, 8, 1, {}) +
        conv("third", silu(norm("norm3", x)), 8, 3, {1, {1, 1, 1, 1}});
    x = affine(x, 0.5f, 0.1f) * constant({1, 8, 1, 1});
    graph->output("half", slice(cast(x, DType::kF32), 1, 2, 6));
    graph->output("y", cast(conv("out", x, 4, 3, {1, {1, 1, 1, 1}}), DType::kF32));
  }

  std::map<std::string, Tensor> inputs() const {
    return {{"x", random_tensor({batch_, 3, 8, 12}, 1)}, {"time", random_tensor({batch_, 8}, 2)}};
  }

  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  Weights weights;

 private:
  Value input(const std::string& name, const Shape& shape) {
    return graph->input(name, {shape, DType::kF32, {}});
  }
  Value weight(const std::string& name, const Shape& shape) {
    weights[name] = random_tensor(shape, weights.size() + 10, dtype_);
    return graph->weight(name, {shape, dtype_, {}});
  }
  Value constant(const Shape& shape) {
    return graph->constant("factors", random_tensor(shape, 7, dtype_));
  }
  Value conv(const std::string& name, Value x, int64_t out, int64_t size,
             const ConvAttributes& how) {
    return conv2d(x, weight(name, {out, x.dim(1), size, size}), weight(name + ".bias", {out}), how);
  }
  Value norm(const std::string& name, Value x) {
    const Shape width{x.dim(1)};
    return group_norm(x, weight(name, width), weight(name + ".bias", width), 4, 1e-5f);
  }
  Value tokens(Value x) {
    const Shape flat{x.dim(0), x.dim(2) * x.dim(3), x.dim(1)};
    Value t = reshape(permute(norm("norm", x), {0, 2, 3, 1}), flat);
    t = linear(t, weight("linear", {x.dim(1), x.dim(1)}));
    return permute(reshape(t, {x.dim(0), x.dim(2), x.dim(3), x.dim(1)}), {0, 3, 1, 2}) + x;
  }

  DType dtype_;
  int64_t batch_;
};

std::shared_ptr<Graph> rewrite_of(const Graph& graph) { return rewrite(graph, {}); }

void expect_same(const Graph& before, const std::shared_ptr<Graph>& after, const Weights& weights,
                 const std::map<std::string, Tensor>& inputs, double tolerance) {
  Program plain(rewrite_of(before), weights, cpu_scalar_kernels(), {2});
  Program turned(after, weights, cpu_scalar_kernels(), {2});
  const auto expected = plain.run(inputs), found = turned.run(inputs);
  ASSERT_EQ(expected.size(), found.size());
  for (const auto& [name, tensor] : expected) {
    const Tensor& other = found.at(name);
    ASSERT_EQ(other.shape(), tensor.shape()) << name;
    ASSERT_EQ(other.dtype(), tensor.dtype()) << name;
    EXPECT_LE(relative_error(floats(other), floats(tensor)), tolerance) << name;
  }
}

TEST(ChannelsLast, IsWhatItWas) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const PictureNetwork n(dtype);
    const auto turned = channels_last(*n.graph);
    expect_same(*n.graph, turned, n.weights, n.inputs(), 0);  // the same bits
    // What follows rounds less often.
    const auto folded = fold_addends(*fold_silu(*turned));
    expect_same(*n.graph, folded, n.weights, n.inputs(), dtype == DType::kF32 ? 1e-6 : 1e-2);
    EXPECT_EQ(count_ops(*folded, Op::kUnary), 0);
    EXPECT_EQ(count_ops(*folded, Op::kAdd), 0);
  }
}

TEST(ChannelsLast, PermutationsAreLeftAtBordersAlone) {
  const PictureNetwork n(DType::kF32);
  EXPECT_EQ(count_ops(*n.graph, Op::kPermute), 2);  // tokens and back
  const auto turned = channels_last(*n.graph);
  EXPECT_EQ(count_ops(*turned, Op::kPermute), 3);  // of the input and both outputs
  for (const Node& node : turned->nodes()) {
    if (node.op != Op::kConv2d) continue;
    EXPECT_TRUE(std::get<ConvAttributes>(node.attributes).channels_last);
  }
}

TEST(ChannelsLast, IsDoneOnce) {
  const PictureNetwork n(DType::kF32);
  const auto once = channels_last(*n.graph), twice = channels_last(*once);
  EXPECT_EQ(count_ops(*twice, Op::kPermute), count_ops(*once, Op::kPermute));
  expect_same(*n.graph, twice, n.weights, n.inputs(), 0);
}

TEST(ChannelsLast, NothingHappensWithoutConvolutions) {
  Graph graph;
  const Value x = graph.input("x", {{2, 3, 4, 5}, DType::kF32, {}});
  graph.output("y", permute(silu(permute(x, {0, 3, 1, 2})), {0, 2, 3, 1}));
  EXPECT_EQ(count_ops(*channels_last(graph), Op::kPermute), 2);
}

// Gradients of everything, added before and after the pass.
TEST(ChannelsLast, GradientsFollow) {
  const PictureNetwork n(DType::kF32);
  const auto with_gradients = [&](const std::shared_ptr<Graph>& graph) {
    const Value y = graph->outputs().at("y");
    const Value loss = sum_to(y * graph->constant("r", random_tensor(y.shape(), 99)), {1});
    std::vector<Value> wrt;
    std::vector<std::string> names;
    for (const auto& [name, value] : graph->weights()) {
      wrt.push_back(value);
      names.push_back(name);
    }
    wrt.push_back(graph->inputs().at("time"));
    names.push_back("time");
    const auto gradients = differentiate(loss, wrt);
    for (size_t i = 0; i < names.size(); ++i) graph->output("d " + names[i], gradients[i]);
    return graph;
  };
  const auto before = with_gradients(rewrite_of(*n.graph));
  const auto after = with_gradients(channels_last(*n.graph));
  expect_same(*before, after, n.weights, n.inputs(), 1e-6);
  // And once sums are folded into convolutions.
  const auto folded = fold_addends(*fold_silu(*after));
  EXPECT_LT(count_ops(*folded, Op::kAdd), count_ops(*after, Op::kAdd));
  expect_same(*before, folded, n.weights, n.inputs(), 1e-6);
}

// Norms that something else reads too, or that have their channels first, keep their SiLU.
TEST(FoldSilu, OtherNormsStay) {
  Graph graph;
  const Value x = graph.input("x", {{1, 4, 4, 8}, DType::kF32, {}});
  const Value w = graph.weight("w", {{8}, DType::kF32, {}});
  const Value read_twice = group_norm(x, w, w, 4, 1e-5f, true);
  graph.output("a", silu(read_twice) + read_twice);
  const Value shown = group_norm(x, w, w, 2, 1e-5f, true);
  graph.output("b", silu(shown));
  graph.output("c", shown);
  const Value v = graph.weight("v", {{4}, DType::kF32, {}});
  graph.output("d", silu(group_norm(x, v, v, 2, 1e-5f)));
  graph.output("e", tanh(group_norm(x, w, w, 2, 1e-5f, true)));
  EXPECT_EQ(count_ops(*fold_silu(graph), Op::kUnary), 4);
}

// On the tested backend, whatever its own order of passes: compiled, as against the reference.
TEST(ChannelsLast, CompiledGraphsEqualTheReference) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const PictureNetwork n(dtype);
    Program reference(n.graph, n.weights, cpu_scalar_kernels(), {2});
    const auto expected = reference.run(n.inputs());
    for (const auto& graph :
         {test::tested_compile(*n.graph), fold_silu(*channels_last(*n.graph))}) {
      Program program = test::tested_program(graph, n.weights);
      for (int run = 0; run < 2; ++run) {
        for (const auto& [name, tensor] : program.run(n.inputs())) {
          EXPECT_LE(relative_error(floats(tensor), floats(expected.at(name))),
                    dtype == DType::kF32 ? 1e-5 : 3e-2)
              << name << ", run " << run;
        }
      }
    }
  }
}

// A row of a batch has the bits that it has alone.
TEST(ChannelsLast, RowsAreTheSameInAnyBatch) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const PictureNetwork all(dtype, 3), one(dtype, 1);
    Program many = test::tested_program(test::tested_compile(*all.graph), all.weights);
    Program single = test::tested_program(test::tested_compile(*one.graph), one.weights);
    const auto inputs = all.inputs();
    const auto together = many.run(inputs);
    for (int64_t row = 0; row < 3; ++row) {
      std::map<std::string, Tensor> own;
      for (const auto& [name, tensor] : inputs) own[name] = tensor.rows(row, row + 1).clone();
      const auto alone = single.run(own);
      for (const auto& [name, tensor] : alone) {
        EXPECT_EQ(test::bytes_of(tensor), test::bytes_of(together.at(name).rows(row, row + 1)))
            << name << " of row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace halftone
