// Gradients are the same bits whether what they need is kept or made again, and less is kept.
#include "halftone/passes/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/passes/compile.h"
#include "tests/support/backend.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::floats;
using test::random_tensor;

// A block as transformers have it, with an adapter on each linear: norm, linear, gate, residual.
struct Blocks {
  static constexpr int64_t kBatch = 2, kTokens = 6, kWidth = 32, kRank = 4, kCount = 3;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  LoraSites sites;
  Weights weights;
  std::map<std::string, Tensor> inputs;

  Value weight(const std::string& name, const Shape& shape) {
    weights[name] = random_tensor(shape, weights.size() + 1);
    return graph->weight(name, {shape, DType::kF32, {}});
  }
  Value linear_of(const std::string& name, Value x) {
    sites.weights.insert(name + ".weight");
    for (const auto& [adapter, shape] :
         {std::pair{lora_down_name(name + ".weight"), Shape{kRank, kWidth}},
          std::pair{lora_up_name(name + ".weight"), Shape{kWidth, kRank}}}) {
      weights[adapter] = random_tensor(shape, weights.size() + 1);
    }
    return linear(x, weight(name + ".weight", {kWidth, kWidth}));
  }
  Blocks() {
    sites.rank = kRank;
    const Shape shape{kBatch, kTokens, kWidth};
    Value x = graph->input("x", {shape, DType::kF32, {}});
    inputs["x"] = random_tensor(shape, 91);
    inputs[lora_strength_name(0)] = random_tensor({kBatch, kRank}, 92);
    for (int64_t i = 0; i < kCount; ++i) {
      const std::string name = "layers." + std::to_string(i);
      const auto region = graph->region("block", name);
      const Value normed = affine(rms_norm(x, weight(name + ".norm", {kWidth}), 1e-5f), 0.1f, 0);
      const Value gate = linear_of(name + ".w1", normed), up = linear_of(name + ".w3", normed);
      x = x + linear_of(name + ".w2", silu_mul(gate, up));
    }
    graph->output("y", x);
  }

  CompiledGraph compiled(Recompute how, bool optimize = true) const {
    CompileOptions options;
    options.lora = {sites};
    options.recompute = how;
    options.optimize = optimize;
    options.extend = [&](Graph& g) {
      const Value y = g.outputs().at("y");
      std::vector<Value> wrt;
      std::vector<std::string> names;
      for (const std::string& site : sites.weights) {
        names.insert(names.end(), {lora_down_name(site), lora_up_name(site)});
      }
      for (const std::string& name : names) wrt.push_back(g.weights().at(name));
      const auto gradients = differentiate(sum_to(y * y, {1}), wrt);
      for (size_t i = 0; i < names.size(); ++i) g.output("gradient of " + names[i], gradients[i]);
    };
    return compile(*graph, options, test::tested_kernels(), test::tested_stream());
  }
  std::map<std::string, Tensor> run(const CompiledGraph& compiled) const {
    return test::tested_program(compiled.graph, weights).run(inputs);
  }
};

// Bytes that the forward pass leaves for gradients, views not counted.
int64_t kept_bytes(const Graph& graph) {
  const auto is_gradient = [&](const Node& node) {
    return node.region >= 0 && graph.regions()[node.region].gradient;
  };
  std::vector<bool> live = graph.results();
  std::set<int> kept;
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& node = graph.nodes()[i];
    if (std::ranges::none_of(node.outputs, [&](int id) { return live[id]; })) continue;
    for (int id : node.inputs) {
      live[id] = true;
      if (!is_gradient(node)) continue;
      int maker = graph.values()[id].producer;
      while (maker >= 0 && graph.nodes()[maker].op == Op::kReshape) {
        id = graph.nodes()[maker].inputs[0];
        maker = graph.values()[id].producer;
      }
      if (maker >= 0 && !is_gradient(graph.nodes()[maker])) kept.insert(id);
    }
  }
  int64_t bytes = 0;
  for (const int id : kept) bytes += graph.values()[id].type.shape.numel() * 4;
  return bytes;
}

TEST(Recomputing, GradientsStayWhatTheyAre) {
  const Blocks blocks;
  const auto plain = blocks.run(blocks.compiled(Recompute::kNone, false));
  for (const Recompute how : {Recompute::kNone, Recompute::kRows, Recompute::kBlocks}) {
    const auto results = blocks.run(blocks.compiled(how));
    ASSERT_EQ(results.size(), plain.size());
    for (const auto& [name, tensor] : results) {
      EXPECT_LE(test::relative_error(floats(tensor), floats(plain.at(name))),
                std::max(5 * test::compile_tolerance(DType::kF32), 1e-6))
          << name << " " << static_cast<int>(how);
    }
  }
}

// What a block must keep at least: what enters it, the outputs of two linears with their adapters,
// and what their small products need; nothing that norms, gates or scales made.
TEST(Recomputing, KeepsWhatIsDearAlone) {
  const Blocks blocks;
  const int64_t all = kept_bytes(*blocks.compiled(Recompute::kNone).graph);
  const int64_t rows = kept_bytes(*blocks.compiled(Recompute::kRows).graph);
  const int64_t least = kept_bytes(*blocks.compiled(Recompute::kBlocks).graph);
  constexpr int64_t kWide = Blocks::kBatch * Blocks::kTokens * Blocks::kWidth * 4;
  constexpr int64_t kNarrow = kWide / Blocks::kWidth * Blocks::kRank;
  // x, gate and up, and three adapters' hidden rows with and without their strength, of each block;
  // the last block's output, for the loss.
  EXPECT_LE(rows, Blocks::kCount * (3 * kWide + 6 * kNarrow) + kWide);
  EXPECT_GT(all, rows);
  EXPECT_LE(least, Blocks::kCount * kWide + kWide);
}

}  // namespace
}  // namespace halftone
