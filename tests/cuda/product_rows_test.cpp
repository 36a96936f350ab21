// A row of a product has the bits that it has alone, however many rows are beside it: what keeps a
// picture the same in every batch. At sizes for which cuBLASLt chooses among different algorithms.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "halftone/kernels/quantize.h"
#include "halftone/passes/lower.h"
#include "halftone/passes/quantize.h"
#include "tests/support/backend.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

struct Size {
  int64_t rows, columns, inputs;
  bool bias;
};

std::string name_of_size(const Size& s) {
  return fmt::format("{} rows to {} x {}{}", s.rows, s.columns, s.inputs, s.bias ? " + bias" : "");
}

std::vector<float> multiplied(const Size& size, int64_t items, const Format& format,
                              const Weights& weights, const std::vector<Tensor>& rows) {
  auto graph = std::make_shared<Graph>();
  std::vector<Value> parts;
  std::map<std::string, Tensor> inputs;
  for (int64_t i = 0; i < items; ++i) {
    const std::string name = fmt::format("x{}", i);
    parts.push_back(graph->input(name, {{1, size.rows, size.inputs}, DType::kBF16, {}}));
    inputs[name] = rows[static_cast<size_t>(i)];
  }
  const Value x = items == 1 ? parts[0] : concat(parts, 0);
  const Value w = graph->weight("w", {{size.columns, size.inputs}, DType::kBF16, {}});
  const Value b = graph->weight("b", {{size.columns}, DType::kBF16, {}});
  const Value y = linear(x, w, size.bias ? std::optional(b) : std::nullopt);
  graph->output("y", slice(y, 0, 0, 1));
  std::shared_ptr<Graph> ready = graph;
  if (format.quantized()) {
    QuantizeRecipe recipe;
    recipe.format = format;
    ready = lower(*quantize_linears(*graph, recipe).graph);
  }
  return test::floats(test::tested_program(ready, weights).run(inputs).at("y"));
}

TEST(CudaProductRows, HaveTheSameBitsInEveryBatch) {
  // The first: few rows of many columns, for which scales by row have no algorithm of their own.
  const std::vector<Size> sizes = {{333, 2432, 9728, true},
                                   {77, 640, 2560, true},
                                   {300, 3840, 10240, false},
                                   {512, 3072, 3072, true}};
  for (const Size& size : sizes) {
    std::vector<Tensor> rows;
    for (uint64_t i = 0; i < 4; ++i) {
      rows.push_back(test::random_tensor({1, size.rows, size.inputs}, 10 + i, DType::kBF16));
    }
    const Tensor w = test::random_tensor({size.columns, size.inputs}, 1, DType::kBF16);
    for (const Format& format : {formats::bf16, formats::fp8, formats::fp8_tensor}) {
      Weights weights = {{"b", test::random_tensor({size.columns}, 2, DType::kBF16)}};
      if (format.quantized()) {
        weights["w"] = quantize(cpu_kernels(), w, format, {}, {2});
      } else {
        weights["w"] = w;
      }
      const auto alone = multiplied(size, 1, format, weights, rows);
      for (const int64_t items : {2, 4}) {
        EXPECT_EQ(multiplied(size, items, format, weights, rows), alone)
            << name_of_size(size) << " in " << format.name << ", " << items << " items";
      }
    }
  }
}

}  // namespace
}  // namespace halftone
