// The table of the tested backend against the reference, op by op, in F32 and BF16, on ragged
// shapes and on ones large enough that several threads share the work.
#include <gtest/gtest.h>

#include "tests/support/backend.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::floats;
using test::int_tensor;
using test::random_tensor;
using test::relative_error;
using test::run_op;
using Values = std::span<const Value>;

class BackendKernels : public testing::TestWithParam<DType> {
 protected:
  Tensor random(const Shape& shape, uint64_t seed) const {
    return random_tensor(shape, seed, GetParam());
  }

  // In BF16 both round the same exact values, so they differ only where a sum falls near a tie.
  void expect_same(const test::Builder& f, const std::vector<Tensor>& inputs,
                   bool wide_weights = false) const {
    const auto fast = run_op(f, inputs, test::tested_kernels(), test::tested_stream());
    const auto reference = run_op(f, inputs, cpu_scalar_kernels());
    EXPECT_EQ(fast.dtype(), reference.dtype());
    EXPECT_EQ(fast.shape(), reference.shape());
    EXPECT_LE(relative_error(floats(fast), floats(reference)),
              GetParam() == DType::kF32                ? 2e-6
              : wide_weights && test::rounds_weights() ? 4e-3
                                                       : 1e-3);
  }

  // Probabilities may be rounded to BF16 on their way, as tensor cores take them.
  void expect_attention_same(const test::Builder& f, const std::vector<Tensor>& inputs) const {
    const auto fast = run_op(f, inputs, test::tested_kernels(), test::tested_stream());
    const auto reference = run_op(f, inputs, cpu_scalar_kernels());
    EXPECT_LE(relative_error(floats(fast), floats(reference)),
              GetParam() == DType::kF32 ? 2e-6 : 4e-3);
  }
};
INSTANTIATE_TEST_SUITE_P(, BackendKernels, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(BackendKernels, AddAndMulInEveryWayOfBroadcasting) {
  const std::pair<Shape, Shape> shapes[] = {{{7}, {7}},
                                            {{3, 5}, {5}},
                                            {{3, 5}, {3, 1}},
                                            {{2, 70, 130}, {2, 1, 130}},
                                            {{4, 1, 6}, {1, 5, 1}},
                                            {{1}, {300, 129}},
                                            {{200, 300}, {200, 300}},
                                            {{2, 3, 4, 5}, {3, 1, 1}},
                                            {{0, 4}, {4}}};
  for (const auto& [a, b] : shapes) {
    expect_same([](Values v) { return v[0] + v[1]; }, {random(a, 1), random(b, 2)});
    expect_same([](Values v) { return v[0] * v[1]; }, {random(a, 3), random(b, 4)});
  }
  // A bf16 activation with float modulation keeps its dtype.
  expect_same([](Values v) { return v[0] * v[1]; },
              {random({2, 9, 33}, 5), random_tensor({2, 1, 33}, 6)});
}

// Weights in BF16 under activations in F32, which keep every bit of theirs.
TEST(BackendProducts, FloatsTimesNarrowWeights) {
  const auto f = [](Values v) { return linear(v[0], v[1], v[2]); };
  const Tensor weight = random_tensor({136, 264}, 41, DType::kBF16),
               bias = random_tensor({136}, 42);
  for (const float magnitude : {1.0f, 3e30f, 1e-30f}) {
    for (const int64_t rows : {70, 600}) {
      Tensor x = random_tensor({2, rows, 264}, 43);
      for (float& v : x.mutable_as<float>()) v *= magnitude;
      Tensor large = Tensor::zeros(DType::kF32, {136});
      for (int64_t i = 0; i < 136; ++i) {
        large.mutable_as<float>()[i] = bias.as<float>()[i] * magnitude;
      }
      const auto fast =
          run_op(f, {x, weight, large}, test::tested_kernels(), test::tested_stream());
      const auto exact = run_op(f, {x, weight, large}, cpu_scalar_kernels());
      EXPECT_LE(relative_error(floats(fast), floats(exact)), 2e-6) << magnitude;
    }
  }
  // What is not finite stays what it is, and where it is.
  Tensor x = random_tensor({1, 70, 264}, 44);
  Tensor positive = Tensor::empty(DType::kBF16, {136, 264});
  std::fill_n(positive.mutable_as<bf16>().begin(), positive.numel(), to_bf16(1.0f));
  const float special[] = {HUGE_VALF, -HUGE_VALF, NAN, 3.4028235e38f};
  for (int64_t i = 0; i < 4; ++i) x.mutable_as<float>()[i * 264 + 7] = special[i];
  const auto y = floats(run_op([](Values v) { return linear(v[0], v[1]); }, {x, positive},
                               test::tested_kernels(), test::tested_stream()));
  EXPECT_EQ(y[0], HUGE_VALF);
  EXPECT_EQ(y[136], -HUGE_VALF);
  EXPECT_TRUE(std::isnan(y[2 * 136]));
  EXPECT_NEAR(y[3 * 136] / 3.4028235e38f, 1, 1e-6);
  for (size_t i = 4 * 136; i < y.size(); ++i) ASSERT_TRUE(std::isfinite(y[i]));
}

TEST_P(BackendKernels, Noise) {
  const Tensor keys = int_tensor({1, 2, 3, 4, -1, -2, -3, -4, 0, 0, 0, 0}, {3, 4});
  for (const Shape& shape : {Shape{3}, Shape{3, 7}, Shape{3, 16, 40, 24}, Shape{3, 0}}) {
    expect_same([&](Values v) { return gaussian(v[0], shape); }, {keys});
  }
}

TEST_P(BackendKernels, Dropout) {
  const Tensor keys = int_tensor({1, 2, 3, 4, -1, -2, -3, -4, 0, 0, 0, 0}, {3, 4});
  for (const Shape& shape : {Shape{3}, Shape{3, 7}, Shape{3, 401, 24}, Shape{3, 0}}) {
    for (const float share : {0.0f, 0.3f, 0.99f}) {
      expect_same([&](Values v) { return dropout(v[0], v[1], {share, 5}); },
                  {random(shape, 1), keys});
    }
  }
}

TEST_P(BackendKernels, Functions) {
  for (const Shape& shape : {Shape{1}, Shape{1023}, Shape{40, 1030}}) {
    const Tensor x = random(shape, 7), y = random(shape, 8);
    expect_same([](Values v) { return affine(v[0], 1.7f, -0.3f); }, {x});
    expect_same([](Values v) { return silu_mul(v[0], v[1]); }, {x, y});
    for (const auto f : {Function::kTanh, Function::kSigmoid, Function::kSilu, Function::kGelu,
                         Function::kQuickGelu, Function::kErfGelu, Function::kErfGeluSlope,
                         Function::kSin, Function::kCos}) {
      expect_same([=](Values v) { return apply(f, v[0]); }, {x});
    }
  }
}

TEST_P(BackendKernels, CopiesOfEveryKind) {
  const Tensor x = random({3, 40, 50}, 9), y = random({3, 7, 50}, 10);
  expect_same([](Values v) { return permute(v[0], {2, 0, 1}); }, {x});
  expect_same([](Values v) { return permute(v[0], {0, 2, 1}); }, {x});
  expect_same([](Values v) { return slice(v[0], 1, 3, 29); }, {x});
  expect_same([](Values v) { return slice(v[0], 2, 49, 50); }, {x});
  expect_same([](Values v) { return pad(v[0], 1, 2, 3); }, {x});
  expect_same([](Values v) { return concat({v[0], v[1], v[0]}, 1); }, {x, y});
  expect_same([](Values v) { return broadcast_to(v[0], {5, 3, 40, 50}); }, {x});
  expect_same(
      [](Values v) { return cast(v[0], v[0].dtype() == DType::kF32 ? DType::kBF16 : DType::kF32); },
      {x});
  expect_same([](Values v) { return upsample2x(v[0]); }, {random({2, 3, 5, 7}, 11)});
}

TEST_P(BackendKernels, Norms) {
  for (const int64_t cols : {1, 15, 16, 96, 1100, 5000}) {
    const Tensor x = random({3, 4, cols}, 12), w = random_tensor({cols}, 13, DType::kBF16);
    expect_same([](Values v) { return rms_norm(v[0], v[1], 1e-5f); }, {x, w});
    if (cols > 1) expect_same([](Values v) { return layer_norm(v[0], 1e-6f); }, {x});
  }
  expect_same(
      [](Values v) { return group_norm(v[0], v[1], v[2], 4, 1e-6f); },
      {random({2, 12, 9, 11}, 14), random_tensor({12}, 15), random_tensor({12}, 16, DType::kBF16)});
}

TEST_P(BackendKernels, RopeAndAttention) {
  const Tensor c = random_tensor({2, 9, 12}, 17), s = random_tensor({2, 9, 12}, 18),
               x = random({2, 9, 3, 24}, 19);
  for (const auto layout : {RopeLayout::kInterleaved, RopeLayout::kHalves}) {
    for (const bool inverse : {false, true}) {
      expect_same([=](Values v) { return rope(v[0], v[1], v[2], {layout, inverse}); }, {x, c, s});
    }
  }
  const Tensor q = random({2, 9, 4, 20}, 20), k = random({2, 13, 2, 20}, 21),
               v = random({2, 13, 2, 20}, 22);
  expect_same([](Values in) { return attention(in[0], in[1], in[2], {}, {0.3f, false}); },
              {q, k, v});
  expect_same([](Values in) { return attention(in[0], in[1], in[2], {}, {0.3f, true}); },
              {q, k, v});
  expect_same([](Values in) { return attention(in[0], in[1], in[2], in[3], {0.3f, false}); },
              {q, k, v, int_tensor({5, 13}, {2})});
}

// Whatever the bias is stored in, and along tiles of queries.
TEST_P(BackendKernels, AttentionWithABias) {
  for (const int64_t queries : {9, 140}) {
    const Tensor q = random({2, queries, 4, 64}, 50), k = random({2, 147, 2, 64}, 51),
                 v = random({2, 147, 2, 64}, 52), lengths = int_tensor({101, 147}, {2});
    for (const DType stored : {DType::kF32, DType::kBF16}) {
      for (const Shape& shape : {Shape{4, queries, 147}, Shape{2, 4, queries, 147}}) {
        const Tensor bias = random_tensor(shape, 53, stored);
        for (const bool causal : {false, true}) {
          expect_attention_same(
              [=](Values in) {
                return attention(in[0], in[1], in[2], in[3], {0.1f, causal}, in[4]);
              },
              {q, k, v, lengths, bias});
        }
      }
    }
  }
}

// As wide as the single head of a VAE.
TEST_P(BackendKernels, AttentionWithWideHeads) {
  const Tensor q = random({2, 70, 2, 320}, 40), k = random({2, 90, 1, 320}, 41),
               v = random({2, 90, 1, 320}, 42);
  const auto f = [](Values in) { return attention(in[0], in[1], in[2], {}, {0.06f, false}); };
  expect_attention_same(f, {q, k, v});
  expect_attention_same(
      [](Values in) { return attention(in[0], in[1], in[2], in[3], {0.06f, false}); },
      {q, k, v, int_tensor({50, 90}, {2})});
}

TEST_P(BackendKernels, ProductsWithWeightsInAnyStoredType) {
  for (const int64_t rows : {1, 2, 15, 16, 40}) {
    for (const DType stored : {DType::kF32, DType::kBF16}) {
      const Tensor x = random({rows, 67}, 23), w = random_tensor({1100, 67}, 24, stored),
                   b = random_tensor({1100}, 25, stored);
      const bool wide = stored == DType::kF32;
      expect_same([](Values v) { return linear(v[0], v[1], v[2]); }, {x, w, b}, wide);
      expect_same([](Values v) { return linear(v[0], v[1]); }, {x, w}, wide);
    }
  }
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Tensor a = random(ta ? Shape{33, 20} : Shape{20, 33}, 26),
                   b = random(tb ? Shape{21, 33} : Shape{33, 21}, 27);
      expect_same([=](Values v) { return matmul(v[0], v[1], ta, tb); }, {a, b});
    }
  }
}

TEST_P(BackendKernels, Convolutions) {
  const Tensor x = random({2, 5, 9, 14}, 28), w = random_tensor({7, 5, 3, 3}, 29, DType::kBF16),
               b = random_tensor({7}, 30);
  expect_same([](Values v) { return conv2d(v[0], v[1], v[2], {1, {1, 1, 1, 1}}); }, {x, w, b});
  expect_same([](Values v) { return conv2d(v[0], v[1], v[2], {2, {0, 0, 1, 1}}); }, {x, w, b});
  expect_same([](Values v) { return conv2d(v[0], v[1], {}, {}); },
              {x, random_tensor({7, 5, 1, 1}, 31)}, true);
}

// With channels last; what is added behind them, alone and together, and none of it.
TEST_P(BackendKernels, ConvolutionsWithChannelsLast) {
  struct Case {
    int64_t in, out, size;
    ConvAttributes how;
  };
  const Case cases[] = {{3, 16, 3, {1, {1, 1, 1, 1}}},
                        {16, 24, 3, {1, {1, 1, 1, 1}}},
                        {4, 9, 3, {2, {0, 0, 1, 1}}},
                        {16, 8, 3, {2, {1, 1, 1, 1}}},
                        {9, 3, 1, {}},
                        {40, 16, 1, {}},
                        {16, 32, 2, {2, {0, 0, 0, 0}}},
                        {8, 4, 5, {1, {2, 1, 0, 3}}}};
  for (Case c : cases) {
    c.how.channels_last = true;
    const Tensor x = random({2, 9, 14, c.in}, 28),
                 w = random_tensor({c.out, c.in, c.size, c.size}, 29, DType::kBF16),
                 b = random({c.out}, 30), shift = random({2, c.out}, 31);
    expect_same([=](Values v) { return conv2d(v[0], v[1], {}, c.how); }, {x, w});
    expect_same([=](Values v) { return conv2d(v[0], v[1], v[2], c.how); }, {x, w, b});
    for (const bool biased : {true, false}) {
      for (const bool adds : {true, false}) {
        for (const bool shifts : {true, false}) {
          const auto f = [=](Values v) {
            const Value plain = conv2d(v[0], v[1], {}, c.how);
            std::vector<Value> operands = {v[0], v[1]};
            if (biased) operands.push_back(v[2]);
            if (shifts) operands.push_back(v[3]);
            if (adds) operands.push_back(tanh(plain));
            ConvAttributes how = c.how;
            how.shifts = shifts;
            how.adds = adds;
            return plain.graph().add(Op::kConv2d, operands, how, plain.type());
          };
          // Where channels are padded, what is added comes behind the rounding.
          expect_same(f, {x, w, b, shift}, adds && c.out % 8 != 0);
        }
      }
    }
  }
}

TEST_P(BackendKernels, PicturesWithChannelsLast) {
  for (const int64_t channels : {12, 32, 1032, 5}) {
    const int groups = channels % 4 == 0 ? 4 : 5;
    const Tensor x = random({2, 9, 11, channels}, 14), w = random_tensor({channels}, 15),
                 b = random_tensor({channels}, 16, DType::kBF16);
    expect_same([=](Values v) { return group_norm(v[0], v[1], v[2], groups, 1e-6f, true); },
                {x, w, b});
    expect_same(
        [=](Values v) {
          const Value y = group_norm(v[0], v[1], v[2], groups, 1e-6f, true);
          const NormAttributes how{1e-6f, groups, true, true};
          return y.graph().add(Op::kGroupNorm, v, how, y.type());
        },
        {x, w, b});
    expect_same([](Values v) { return upsample2x(v[0], true); }, {x});
  }
  // A large plane, whose mean is far from zero, as far as floats go.
  Tensor far = random_tensor({1, 96, 96, 64}, 17);
  for (float& v : far.mutable_as<float>()) v += 30;
  expect_same(
      [](Values v) { return group_norm(cast(v[0], v[1].dtype()), v[1], v[2], 8, 1e-6f, true); },
      {far, random({64}, 18), random({64}, 19)});
}

// A row's bits must not depend on how many rows there are.
TEST_P(BackendKernels, LinearRowsAreTheSameInAnyBatch) {
  const Tensor w = random_tensor({200, 130}, 32, DType::kBF16);
  const auto f = [](Values v) { return linear(v[0], v[1]); };
  for (const int64_t tokens : {1, 3, 15, 16, 33}) {  // per item
    const Tensor all = random({40, tokens, 130}, 33);
    const auto many = floats(run_op(f, {all, w}, test::tested_kernels(), test::tested_stream()));
    for (const int64_t items : {1, 2, 5, 16, 39}) {
      const auto some =
          floats(run_op(f, {all.rows(0, items), w}, test::tested_kernels(), test::tested_stream()));
      EXPECT_EQ(some, std::vector<float>(many.begin(), many.begin() + items * tokens * 200))
          << items << " x " << tokens;
    }
  }
}

}  // namespace
}  // namespace halftone
