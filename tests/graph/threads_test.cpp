// A value's bits depend neither on the number of threads nor on who shares its batch.
#include <gtest/gtest.h>

#include <cstring>

#include "halftone/kernels/quantize.h"
#include "halftone/passes/lower.h"
#include "halftone/passes/quantize.h"
#include "tests/support/run_graph.h"
#include "tests/support/sanitizers.h"

namespace halftone {
namespace {

using test::random_tensor;
using Values = std::span<const Value>;

struct ThreadsCase {
  const char* name;
  test::Builder build;
  std::vector<Shape> inputs;
};

std::vector<ThreadsCase> cases() {
  const auto linear_of = [](Values v) { return linear(v[0], v[1]); };
  const auto conv = [](Values v) { return conv2d(v[0], v[1], std::nullopt, {1, {1, 1, 1, 1}}); };
  return {
      {"linear, one row", linear_of, {{1, 1, 700}, {300, 700}}},
      {"linear, a few rows", linear_of, {{1, 17, 1000}, {65, 1000}}},
      {"linear", linear_of, {{1, 100, 1025}, {1500, 1025}}},
      {"linear, many rows", linear_of, {{1, 300, 400}, {700, 400}}},
      {"matmul",
       [](Values v) { return matmul(v[0], v[1], false, false); },
       {{130, 900}, {900, 70}}},
      {"matmul^T",
       [](Values v) { return matmul(v[0], v[1], true, false); },
       {{900, 130}, {900, 270}}},
      {"conv 3x3", conv, {{1, 48, 33, 20}, {70, 48, 3, 3}}},
      {"conv 1x1",
       [](Values v) { return conv2d(v[0], v[1], std::nullopt, {}); },
       {{1, 300, 20, 33}, {70, 300, 1, 1}}},
      {"conv of pixels", conv, {{1, 48, 40, 40}, {3, 48, 3, 3}}},
      {"attention",
       [](Values v) { return attention(v[0], v[1], v[2], std::nullopt, {0.1f}); },
       {{2, 140, 3, 64}, {2, 140, 3, 64}, {2, 140, 3, 64}}},
      {"rms_norm", [](Values v) { return rms_norm(v[0], v[1], 1e-5f); }, {{70, 1500}, {1500}}},
      {"layer_norm", [](Values v) { return layer_norm(v[0], 1e-5f); }, {{70, 1500}}},
      {"group_norm",
       [](Values v) { return group_norm(v[0], v[1], v[2], 4, 1e-5f); },
       {{1, 16, 50, 41}, {16}, {16}}},
      {"sum", [](Values v) { return sum_to(v[0], {1}); }, {{300, 700}}},
      {"add", [](Values v) { return v[0] + v[1]; }, {{300, 700}, {700}}},
      {"upsample", [](Values v) { return upsample2x(v[0]); }, {{1, 7, 50, 41}}},
  };
}

std::vector<Tensor> tensors_of(const ThreadsCase& c, DType dtype) {
  std::vector<Tensor> tensors;
  for (const Shape& shape : c.inputs) {
    tensors.push_back(random_tensor(shape, 1 + tensors.size(), dtype));
  }
  return tensors;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0;
}

TEST(Threads, DoNotChangeTheBitsOfAnyOp) {
  for (const ThreadsCase& c : cases()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto inputs = tensors_of(c, dtype);
      const Tensor alone = test::run_op(c.build, inputs, cpu_kernels(), {1});
      for (const int threads : {2, 3, 8}) {
        EXPECT_TRUE(same_bits(test::run_op(c.build, inputs, cpu_kernels(), {threads}), alone))
            << c.name << " in " << name_of(dtype) << " with " << threads << " threads";
      }
    }
  }
}

TEST(Threads, DoNotChangeTheBitsOfQuantizedProducts) {
  HT_SKIP_WHERE_SANITIZED();
  for (const Format& format : all_formats()) {
    if (!format.quantized()) continue;
    auto graph = std::make_shared<Graph>();
    const Value x = graph->input("x", {{1, 90, 1024}, DType::kBF16, {}});
    const Value w = graph->weight("w.weight", {{1100, 1024}, DType::kF32, {}});
    graph->output("y", linear(x, w));
    const auto lowered = lower(*quantize_linears(*graph, {format}).graph);
    const Tensor weight = random_tensor({1100, 1024}, 2);
    const std::map<std::string, Tensor> inputs = {
        {"x", random_tensor({1, 90, 1024}, 1, DType::kBF16)}};
    std::optional<Tensor> alone;
    for (const int threads : {1, 2, 3, 8}) {
      const Weights weights = {
          {"w.weight", quantize(cpu_kernels(), weight, format, {}, {threads})}};
      const Tensor y = Program(lowered, weights, cpu_kernels(), {threads}).run(inputs).at("y");
      if (!alone) alone = y;
      EXPECT_TRUE(same_bits(y, *alone)) << format.name << " with " << threads << " threads";
    }
  }
}

// Items that are shorter and longer than a tile, and contractions of more than one block.
TEST(Threads, AnItemOfABatchHasTheBitsThatItHasAlone) {
  for (const int64_t rows : {1, 15, 16, 17, 64, 100, 128, 129, 300}) {
    for (const int64_t k : {64, 400, 1000}) {
      const Shape weight{270, k};
      const auto product = [](Values v) { return linear(v[0], v[1]); };
      const Tensor all = random_tensor({5, rows, k}, 1), w = random_tensor(weight, 2);
      const Tensor together = test::run_op(product, {all, w}, cpu_kernels(), {2});
      for (const int64_t item : {0, 4}) {
        const Tensor alone =
            test::run_op(product, {all.rows(item, item + 1), w}, cpu_kernels(), {2});
        EXPECT_TRUE(same_bits(alone, together.rows(item, item + 1)))
            << "item " << item << " of " << rows << " rows, k " << k;
      }
    }
  }
}

}  // namespace
}  // namespace halftone
