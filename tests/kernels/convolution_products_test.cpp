// Convolutions as products, and their gradients, against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "halftone/kernels/cpu/fast/rows.h"
#include "halftone/kernels/kernels.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

struct Case {
  const char* name;
  Shape x, weight;
  ConvAttributes how;

  Shape y() const {
    const auto size = [&](int axis, int before, int after) {
      return (x[axis] + how.pad[before] + how.pad[after] - weight[axis]) / how.stride + 1;
    };
    return {x[0], weight[0], size(2, 0, 2), size(3, 1, 3)};
  }
};

const Case kCases[] = {
    {"3x3", {2, 5, 9, 7}, {4, 5, 3, 3}, {1, {1, 1, 1, 1}}},
    {"1x1", {1, 33, 6, 5}, {3, 33, 1, 1}, {}},
    {"strided", {2, 4, 9, 8}, {6, 4, 3, 3}, {2, {0, 0, 1, 1}}},
    {"strided, padded before", {1, 3, 8, 11}, {2, 3, 4, 2}, {3, {2, 1, 0, 0}}},
    {"a window wider than the picture", {1, 2, 3, 2}, {3, 2, 5, 5}, {1, {2, 2, 2, 2}}},
    {"more padding than window", {1, 2, 4, 3}, {2, 2, 2, 2}, {2, {3, 4, 3, 4}}},
    {"one pixel", {3, 2, 1, 1}, {2, 2, 1, 1}, {}},
    {"several pieces", {2, 40, 70, 66}, {3, 40, 3, 3}, {1, {1, 1, 1, 1}}},
};

struct Tables {
  Tables() : fast(cpu_scalar_kernels()) { fast::fill_convolution_products(fast); }
  Kernels fast;
};

template <class Args>
std::vector<float> run(const Kernel<Args>& kernel, Args args, View Args::* result, int threads) {
  std::vector<float> y(static_cast<size_t>((args.*result).shape.numel()), NAN);
  (args.*result).data = y.data();
  Stream stream{threads};
  std::vector<float> memory(static_cast<size_t>(kernel.workspace(args, stream) / 4 + 64));
  const auto start = reinterpret_cast<uintptr_t>(memory.data());
  stream.workspace = reinterpret_cast<std::byte*>(memory.data()) + (256 - start % 256) % 256;
  stream.workspace_bytes = kernel.workspace(args, stream);
  kernel.launch(args, stream);
  return y;
}

template <class Args>
void expect_same(const Kernel<Args>& fast, const Kernel<Args>& reference, const Args& args,
                 View Args::* result) {
  ASSERT_FALSE(fast.first().reference);
  const std::vector<float> expected = run(reference, args, result, 1);
  const std::vector<float> y = run(fast, args, result, 1);
  double largest = 1e-6;
  for (const float x : expected) largest = std::max(largest, double{std::fabs(x)});
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 2e-6 * largest) << i;
  EXPECT_EQ(run(fast, args, result, 3), y) << "bits depend on threads";
}

TEST(ConvolutionProducts, AreTheReference) {
  const Tables tables;
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const auto x = test::gaussians(1, c.x.numel()), w = test::gaussians(2, c.weight.numel()),
               b = test::gaussians(3, c.weight[0]), dy = test::gaussians(4, c.y().numel());
    const auto view = [](const std::vector<float>& v, const Shape& shape) {
      return ConstView{v.data(), DType::kF32, shape};
    };
    const auto bias = view(b, {c.weight[0]});
    for (const ConstView& shift : {bias, ConstView{}}) {
      expect_same(tables.fast.conv2d, cpu_scalar_kernels().conv2d,
                  ConvArgs{c.how, view(x, c.x), view(w, c.weight), shift, {{}, DType::kF32, c.y()}},
                  &ConvArgs::y);
    }
    expect_same(
        tables.fast.conv2d_input_grad, cpu_scalar_kernels().conv2d_input_grad,
        ConvInputGradArgs{c.how, view(dy, c.y()), view(w, c.weight), {{}, DType::kF32, c.x}},
        &ConvInputGradArgs::dx);
    expect_same(
        tables.fast.conv2d_weight_grad, cpu_scalar_kernels().conv2d_weight_grad,
        ConvWeightGradArgs{c.how, view(dy, c.y()), view(x, c.x), {{}, DType::kF32, c.weight}},
        &ConvWeightGradArgs::dweight);
  }
}

}  // namespace
}  // namespace halftone
