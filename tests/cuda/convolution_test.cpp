// Convolutions of the sizes that models have: as the CPU computes them, through cuDNN, and each
// item with the bits that it has alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "halftone/graph/ops.h"
#include "tests/support/backend.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::floats;
using test::random_tensor;
using test::relative_error;

struct Convolved {
  int64_t in, out, size, side;  // channels, kernel, and the picture's height and width
  ConvAttributes how;
  const char* name;
};
constexpr ConvAttributes kSame{1, {1, 1, 1, 1}, true}, kPoint{1, {0, 0, 0, 0}, true};
constexpr ConvAttributes kHalved{2, {1, 1, 1, 1}, true}, kHalvedBelow{2, {0, 0, 1, 1}, true};
constexpr Convolved kConvolved[] = {
    {4, 320, 3, 32, kSame, "first"},    {320, 320, 3, 64, kSame, "wide"},
    {1280, 640, 3, 16, kSame, "deep"},  {960, 640, 1, 32, kPoint, "shortcut"},
    {320, 320, 3, 32, kHalved, "down"}, {128, 128, 3, 64, kHalvedBelow, "below"},
    {320, 4, 3, 32, kSame, "last"},     {128, 3, 3, 64, kSame, "pixels"},
    {3, 128, 3, 64, kSame, "colours"},  {16, 9, 3, 20, kSame, "odd"},
};

// Even ones in [-1, 1), many of them in no time.
Tensor many_values(const Shape& shape, float scale) {
  Tensor tensor = Tensor::empty(DType::kF32, shape);
  uint32_t state = 1;
  for (float& v : tensor.mutable_as<float>()) {
    state = state * 1664525u + 1013904223u;
    v = (static_cast<float>(state >> 8) * 0x1p-23f - 1) * scale;
  }
  return tensor;
}

class CudaConvolution : public testing::TestWithParam<Convolved> {
 protected:
  // What one item or several give; with what resnets add behind a convolution.
  std::map<std::string, Tensor> run(DType dtype, int64_t items, bool on_device,
                                    DType stored) const {
    const Convolved& c = GetParam();
    auto graph = std::make_shared<Graph>();
    const Shape shape{items, c.side, c.side, c.in};
    const Value x = graph->input("x", {shape, dtype, {}});
    const Value w = graph->weight("w", {{c.out, c.in, c.size, c.size}, dtype, {}});
    const Value b = graph->weight("b", {{c.out}, dtype, {}});
    const Value t = graph->input("t", {{items, c.out}, dtype, {}});
    const Value y = conv2d(x, w, b, c.how);
    graph->output("y", y);
    ConvAttributes how = c.how;
    how.shifts = true;
    const auto behind = [&](std::initializer_list<Value> operands) {
      return on_device ? std::optional(graph->add(Op::kConv2d, operands, how, y.type()))
                       : std::nullopt;
    };
    graph->output("shifted", behind({x, w, b, t}).value_or(y + reshape(t, {items, 1, 1, c.out})));
    how.shifts = false;
    how.adds = true;
    const Value add = tanh(y);
    graph->output("sum", behind({x, w, b, add}).value_or(y + add));
    const auto each = static_cast<float>(c.in * c.size * c.size);
    Tensor weight = many_values({c.out, c.in, c.size, c.size}, std::sqrt(3 / each));
    if (stored == DType::kBF16) weight = test::bf16_tensor(weight.shape(), floats(weight));
    const Weights weights = {{"w", weight}, {"b", random_tensor({c.out}, 2, stored)}};
    const Tensor x_all = random_tensor({3, c.side, c.side, c.in}, 3, dtype),
                 t_all = random_tensor({3, c.out}, 4, dtype);
    const std::map<std::string, Tensor> inputs = {{"x", x_all.rows(0, items).clone()},
                                                  {"t", t_all.rows(0, items).clone()}};
    if (on_device) {
      Program program = test::tested_program(graph, weights);
      program.run(inputs);
      return program.run(inputs);
    }
    return Program(graph, weights, cpu_kernels(), {2}).run(inputs);
  }
};
INSTANTIATE_TEST_SUITE_P(, CudaConvolution, testing::ValuesIn(kConvolved),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(CudaConvolution, EqualsTheCpu) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const auto expected = run(dtype, 1, false, dtype), found = run(dtype, 1, true, dtype);
    for (const auto& [name, tensor] : expected) {
      EXPECT_LE(relative_error(floats(found.at(name)), floats(tensor)),
                dtype == DType::kF32 ? 3e-6 : 4e-3)
          << name << " in " << name_of(dtype);
    }
  }
}

// Wider than what it is multiplied with: rounded in every run.
TEST_P(CudaConvolution, WeightsMayBeStoredWider) {
  const auto expected = run(DType::kBF16, 1, false, DType::kF32),
             found = run(DType::kBF16, 1, true, DType::kF32);
  for (const auto& [name, tensor] : expected) {
    EXPECT_LE(relative_error(floats(found.at(name)), floats(tensor)), 5e-3) << name;
  }
}

TEST_P(CudaConvolution, ItemsHaveTheBitsThatTheyHaveAlone) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const auto alone = run(dtype, 1, true, dtype);
    for (const int64_t items : {2, 3}) {
      const auto together = run(dtype, items, true, dtype);
      for (const auto& [name, tensor] : alone) {
        EXPECT_EQ(test::bytes_of(together.at(name).rows(0, 1)), test::bytes_of(tensor))
            << name << " in " << name_of(dtype) << ", " << items << " items";
      }
    }
  }
}

// Nothing is left to the plain kernels.
TEST(CudaConvolutions, AreAllCudnns) {
  for (const std::string& line : test::tested_stream().device->fallbacks()) {
    EXPECT_EQ(line.find("convolution"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace halftone
