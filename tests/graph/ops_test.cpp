// Every op: values against a definition written here, and its gradient by finite differences.
#include <gtest/gtest.h>

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/graph/catalogue.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::expect_gradient;
using test::floats;
using test::int_tensor;
using test::random_tensor;
using test::run_op;
using Values = std::span<const Value>;

std::vector<float> run(const test::Builder& f, const std::vector<Tensor>& inputs) {
  return floats(run_op(f, inputs, cpu_scalar_kernels()));
}
void expect_close(const std::vector<float>& y, const std::vector<float>& reference,
                  double tolerance = 1e-6) {
  EXPECT_LE(test::relative_error(y, reference), tolerance);
}

TEST(Ops, AddAndMulBroadcast) {
  const Tensor a = test::f32_tensor({2, 3}, {1, 2, 3, 4, 5, 6}),
               b = test::f32_tensor({3}, {10, 20, 30}), c = test::f32_tensor({2, 1}, {2, 3});
  EXPECT_EQ(run([](Values v) { return v[0] + v[1]; }, {a, b}),
            (std::vector<float>{11, 22, 33, 14, 25, 36}));
  EXPECT_EQ(run([](Values v) { return v[0] * v[1]; }, {a, c}),
            (std::vector<float>{2, 4, 6, 12, 15, 18}));
  EXPECT_EQ(run([](Values v) { return v[0] * v[1]; }, {c, b}),
            (std::vector<float>{20, 40, 60, 30, 60, 90}));
  expect_gradient(
      [](Values v) { return v[0] * v[1] + v[2]; },
      {random_tensor({2, 3, 4}, 1), random_tensor({3, 1}, 2), random_tensor({2, 1, 4}, 3)});
}

TEST(Ops, AffineAndFunctions) {
  const Tensor x = random_tensor({5}, 4);
  const auto in = floats(x);
  EXPECT_EQ(run([](Values v) { return affine(v[0], 2, 1); }, {x})[3], in[3] * 2 + 1);
  const std::pair<Function, double (*)(double)> functions[] = {
      {Function::kTanh, [](double v) { return std::tanh(v); }},
      {Function::kSigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }},
      {Function::kSilu, [](double v) { return v / (1 + std::exp(-v)); }},
      {Function::kGelu,
       [](double v) {
         return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
       }},
      {Function::kQuickGelu, [](double v) { return v / (1 + std::exp(-1.702 * v)); }},
      {Function::kErfGelu, [](double v) { return 0.5 * v * (1 + std::erf(v / std::sqrt(2))); }},
      {Function::kSin, [](double v) { return std::sin(v); }},
      {Function::kCos, [](double v) { return std::cos(v); }}};
  for (const auto& [function, definition] : functions) {
    const auto f = [function = function](Values v) { return apply(function, v[0]); };
    for (size_t i = 0; i < in.size(); ++i) EXPECT_NEAR(run(f, {x})[i], definition(in[i]), 1e-6);
    expect_gradient(f, {x});
  }
  expect_gradient([](Values v) { return affine(v[0], 3, 1) - v[1]; }, {x, random_tensor({5}, 5)});
}

TEST(Ops, SiluMulIsSiluTimes) {
  const std::vector<Tensor> in = {random_tensor({3, 4}, 6), random_tensor({3, 4}, 7)};
  expect_close(run([](Values v) { return silu_mul(v[0], v[1]); }, in),
               run([](Values v) { return silu(v[0]) * v[1]; }, in));
  expect_gradient([](Values v) { return silu_mul(v[0], v[1]); }, in);
}

TEST(Ops, Shapes) {
  const Tensor x = test::f32_tensor({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(run([](Values v) { return sum_to(v[0], {3}); }, {x}), (std::vector<float>{5, 7, 9}));
  EXPECT_EQ(run([](Values v) { return sum_to(v[0], {2, 1}); }, {x}), (std::vector<float>{6, 15}));
  EXPECT_EQ(run([](Values v) { return sum_to(v[0], {1}); }, {x}), (std::vector<float>{21}));
  EXPECT_EQ(run([](Values v) { return permute(v[0], {1, 0}); }, {x}),
            (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(run([](Values v) { return reshape(v[0], {3, 2}) + v[1]; },
                {x, test::f32_tensor({2}, {0, 10})}),
            (std::vector<float>{1, 12, 3, 14, 5, 16}));
  EXPECT_EQ(run([](Values v) { return slice(v[0], 1, 1, 3); }, {x}),
            (std::vector<float>{2, 3, 5, 6}));
  EXPECT_EQ(run([](Values v) { return pad(v[0], 1, 1, 0); }, {x}),
            (std::vector<float>{0, 1, 2, 3, 0, 4, 5, 6}));
  EXPECT_EQ(
      run([](Values v) { return concat({v[0], v[1]}, 1); }, {x, test::f32_tensor({2, 1}, {7, 8})}),
      (std::vector<float>{1, 2, 3, 7, 4, 5, 6, 8}));
  EXPECT_EQ(run([](Values v) { return broadcast_to(v[0], {2, 2, 1}); },
                {test::f32_tensor({2, 1}, {1, 2})}),
            (std::vector<float>{1, 2, 1, 2}));
  EXPECT_EQ(run([](Values v) { return split(v[0], 3, 1)[2]; }, {x}), (std::vector<float>{3, 6}));
}

TEST(Ops, GradientsOfShapes) {
  const Tensor x = random_tensor({2, 3, 4}, 8), y = random_tensor({2, 2, 4}, 9);
  expect_gradient([](Values v) { return sum_to(v[0], {3, 1}); }, {x});
  expect_gradient([](Values v) { return broadcast_to(v[0], {5, 2, 3, 4}); }, {x});
  expect_gradient([](Values v) { return permute(v[0], {2, 0, 1}); }, {x});
  expect_gradient([](Values v) { return reshape(v[0], {4, 6}); }, {x});
  expect_gradient([](Values v) { return slice(v[0], 1, 1, 3); }, {x});
  expect_gradient([](Values v) { return pad(v[0], 2, 1, 2); }, {x});
  expect_gradient([](Values v) { return concat({v[0], v[1], v[0]}, 1); }, {x, y});
}

TEST(Ops, LinearAndMatMul) {
  const Tensor x = random_tensor({2, 3, 5}, 10), w = random_tensor({4, 5}, 11),
               b = random_tensor({4}, 12);
  const auto y = run([](Values v) { return linear(v[0], v[1], v[2]); }, {x, w, b});
  for (int r = 0; r < 6; ++r) {
    for (int n = 0; n < 4; ++n) {
      double sum = floats(b)[n];
      for (int k = 0; k < 5; ++k) sum += double{floats(x)[r * 5 + k]} * floats(w)[n * 5 + k];
      EXPECT_NEAR(y[r * 4 + n], sum, 1e-5);
    }
  }
  expect_gradient([](Values v) { return linear(v[0], v[1], v[2]); }, {x, w, b});
  expect_gradient([](Values v) { return linear(v[0], v[1]); }, {x, w});
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Tensor a = random_tensor(ta ? Shape{4, 3} : Shape{3, 4}, 13),
                   c = random_tensor(tb ? Shape{5, 4} : Shape{4, 5}, 14);
      expect_gradient([=](Values v) { return matmul(v[0], v[1], ta, tb); }, {a, c});
    }
  }
}

TEST(Ops, Conv2d) {
  const Tensor x = random_tensor({2, 3, 5, 6}, 15), w = random_tensor({4, 3, 3, 3}, 16),
               b = random_tensor({4}, 17);
  // A 1x1 convolution is a linear map of channels.
  const Tensor one = random_tensor({4, 3, 1, 1}, 18);
  expect_close(run([](Values v) { return conv2d(v[0], v[1], v[2], {}); }, {x, one, b}),
               run(
                   [](Values v) {
                     return permute(
                         linear(permute(v[0], {0, 2, 3, 1}), reshape(v[1], {4, 3}), v[2]),
                         {0, 3, 1, 2});
                   },
                   {x, one, b}));
  // A kernel with a single one in its middle copies; off the middle, it shifts and brings in zeros.
  Tensor middle = Tensor::zeros(DType::kF32, {1, 1, 3, 3}),
         corner = Tensor::zeros(DType::kF32, {1, 1, 3, 3});
  middle.mutable_as<float>()[4] = corner.mutable_as<float>()[0] = 1;
  const Tensor image = test::f32_tensor({1, 1, 2, 2}, {1, 2, 3, 4});
  const ConvAttributes same{1, {1, 1, 1, 1}};
  EXPECT_EQ(run([=](Values v) { return conv2d(v[0], v[1], {}, same); }, {image, middle}),
            (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(run([=](Values v) { return conv2d(v[0], v[1], {}, same); }, {image, corner}),
            (std::vector<float>{0, 0, 0, 1}));
  expect_gradient([=](Values v) { return conv2d(v[0], v[1], v[2], same); }, {x, w, b});
  expect_gradient([](Values v) { return conv2d(v[0], v[1], v[2], {2, {0, 0, 1, 1}}); }, {x, w, b});
}

TEST(Ops, Norms) {
  const Tensor x = random_tensor({3, 7}, 19), w = random_tensor({7}, 20);
  const auto y = run([](Values v) { return rms_norm(v[0], v[1], 1e-5f); }, {x, w});
  double squares = 0;
  for (int c = 0; c < 7; ++c) squares += std::pow(floats(x)[7 + c], 2);
  EXPECT_NEAR(y[8], floats(x)[8] / std::sqrt(squares / 7 + 1e-5) * floats(w)[1], 1e-5);
  expect_gradient([](Values v) { return rms_norm(v[0], v[1], 1e-5f); }, {x, w});

  // The composed rule: layer norm from sums and products.
  const auto z = run([](Values v) { return layer_norm(v[0], 1e-6f); }, {x});
  for (int r = 0; r < 3; ++r) {
    double sum = 0, square = 0;
    for (int c = 0; c < 7; ++c) sum += z[r * 7 + c], square += std::pow(z[r * 7 + c], 2);
    EXPECT_NEAR(sum, 0, 1e-5);
    EXPECT_NEAR(square, 7, 1e-3);
  }
  expect_gradient([](Values v) { return layer_norm(v[0], 1e-6f); }, {x});
}

TEST(Ops, GroupNormIsLayerNormOfEachGroup) {
  const Tensor x = random_tensor({2, 4, 3, 5}, 21), w = random_tensor({4}, 22),
               b = random_tensor({4}, 23);
  const auto composed = [](Values v) {
    const Value z = reshape(layer_norm(reshape(v[0], {4, 30}), 1e-6f), {2, 4, 3, 5});
    return z * reshape(v[1], {4, 1, 1}) + reshape(v[2], {4, 1, 1});
  };
  expect_close(run([](Values v) { return group_norm(v[0], v[1], v[2], 2, 1e-6f); }, {x, w, b}),
               run(composed, {x, w, b}));
  expect_gradient([](Values v) { return group_norm(v[0], v[1], v[2], 2, 1e-6f); }, {x, w, b});
}

TEST(Ops, RopeRotatesPairsInBothLayouts) {
  const Tensor cosine = test::f32_tensor({1, 1, 2}, {std::cos(.3f), std::cos(1.1f)});
  const Tensor sine = test::f32_tensor({1, 1, 2}, {std::sin(.3f), std::sin(1.1f)});
  const Tensor x = test::f32_tensor({1, 1, 1, 4}, {1, 2, 3, 4});
  const auto rotate = [&](RopeLayout layout, bool inverse) {
    return run([=](Values v) { return rope(v[0], v[1], v[2], {layout, inverse}); },
               {x, cosine, sine});
  };
  const auto pairs = rotate(RopeLayout::kInterleaved, false);
  EXPECT_NEAR(pairs[0], 1 * std::cos(.3) - 2 * std::sin(.3), 1e-6);
  EXPECT_NEAR(pairs[3], 3 * std::sin(1.1) + 4 * std::cos(1.1), 1e-6);
  const auto halves = rotate(RopeLayout::kHalves, false);
  EXPECT_NEAR(halves[0], 1 * std::cos(.3) - 3 * std::sin(.3), 1e-6);
  EXPECT_NEAR(halves[3], 2 * std::sin(1.1) + 4 * std::cos(1.1), 1e-6);
  for (const auto layout : {RopeLayout::kInterleaved, RopeLayout::kHalves}) {
    const Tensor q = random_tensor({2, 3, 2, 6}, 24), c = random_tensor({2, 3, 3}, 25),
                 s = random_tensor({2, 3, 3}, 26);
    // Tables are data, not parameters: only x has a gradient.
    expect_gradient(
        [&](Values v) {
          Graph& g = v[0].graph();
          return rope(v[0], g.constant("c", c), g.constant("s", s), {layout, false});
        },
        {q});
  }
}

TEST(Ops, AttentionAgainstItsDefinition) {
  const Tensor q = random_tensor({2, 3, 4, 5}, 27), k = random_tensor({2, 6, 2, 5}, 28),
               v = random_tensor({2, 6, 2, 5}, 29);
  const Tensor lengths = int_tensor({4, 6}, {2});
  const auto y = run([](Values in) { return attention(in[0], in[1], in[2], in[3], {0.5f, false}); },
                     {q, k, v, lengths});
  const auto Q = floats(q), K = floats(k), V = floats(v);
  for (int b = 0; b < 2; ++b) {
    for (int t = 0; t < 3; ++t) {
      for (int h = 0; h < 4; ++h) {
        const int seen = b == 0 ? 4 : 6, g = h / 2;
        std::vector<double> weight(seen);
        double sum = 0, out = 0;
        for (int s = 0; s < seen; ++s) {
          double dot = 0;
          for (int d = 0; d < 5; ++d)
            dot += double{Q[((b * 3 + t) * 4 + h) * 5 + d]} * K[((b * 6 + s) * 2 + g) * 5 + d];
          sum += weight[s] = std::exp(dot * 0.5);
        }
        for (int s = 0; s < seen; ++s) out += weight[s] / sum * V[((b * 6 + s) * 2 + g) * 5 + 1];
        EXPECT_NEAR(y[((b * 3 + t) * 4 + h) * 5 + 1], out, 1e-5);
      }
    }
  }
  expect_gradient(
      [&](Values in) {
        return attention(in[0], in[1], in[2], in[0].graph().constant("lengths", lengths),
                         {0.5f, false});
      },
      {q, k, v});
}

// With lengths, the future hidden and a bias all at once; one bias for all items, and one for each.
TEST(Ops, AttentionAddsABiasToItsScores) {
  const Tensor q = random_tensor({2, 3, 4, 5}, 60), k = random_tensor({2, 6, 2, 5}, 61),
               v = random_tensor({2, 6, 2, 5}, 62), lengths = int_tensor({4, 6}, {2});
  const auto Q = floats(q), K = floats(k), V = floats(v);
  for (const Shape& shape : {Shape{4, 3, 6}, Shape{2, 4, 3, 6}}) {
    const Tensor bias = random_tensor(shape, 63);
    const auto B = floats(bias);
    for (const bool causal : {false, true}) {
      const auto f = [=](Values in) {
        return attention(in[0], in[1], in[2], in[0].graph().constant("lengths", lengths),
                         {0.5f, causal}, in[3]);
      };
      const auto y = run(f, {q, k, v, bias});
      double largest = 0;
      for (int i = 0; i < 2 * 3 * 4; ++i) {
        const int b = i / 12, t = i / 4 % 3, h = i % 4;
        double sum = 0, out[5] = {};
        for (int s = 0; s < (b == 0 ? 4 : 6); ++s) {
          if (causal && s > t + 3) continue;  // queries are the last 3 of 6
          double score = B[(((shape.rank() == 4 ? b : 0) * 4 + h) * 3 + t) * 6 + s];
          for (int d = 0; d < 5; ++d)
            score += 0.5 * Q[i * 5 + d] * K[((b * 6 + s) * 2 + h / 2) * 5 + d];
          sum += std::exp(score);
          for (int d = 0; d < 5; ++d)
            out[d] += std::exp(score) * V[((b * 6 + s) * 2 + h / 2) * 5 + d];
        }
        for (int d = 0; d < 5; ++d)
          largest = std::max(largest, std::abs(y[i * 5 + d] - out[d] / sum));
      }
      EXPECT_LE(largest, 1e-5) << shape.str() << causal;
      expect_gradient(f, {q, k, v, bias});
    }
  }
  Graph graph;
  const auto input = [&](const char* name, const Shape& shape) {
    return graph.input(name, {shape, DType::kF32, {}});
  };
  const Value a = input("q", {2, 3, 4, 5}), b = input("k", {2, 6, 2, 5});
  EXPECT_THROW(attention(a, b, b, {}, {}, input("bias", {4, 6, 3})), Error);
}

TEST(Ops, CausalAttentionDoesNotSeeTheFuture) {
  const Tensor q = random_tensor({1, 4, 2, 3}, 30), k = random_tensor({1, 4, 1, 3}, 31);
  Tensor v = random_tensor({1, 4, 1, 3}, 32);
  const auto f = [](Values in) { return attention(in[0], in[1], in[2], {}, {1, true}); };
  const auto before = run(f, {q, k, v});
  for (int d = 0; d < 3; ++d) v.mutable_as<float>()[9 + d] += 100;  // the last token
  const auto after = run(f, {q, k, v});
  for (int i = 0; i < 3 * 6; ++i) EXPECT_EQ(before[i], after[i]);
  EXPECT_NE(before[20], after[20]);
  EXPECT_NEAR(before[0], floats(v)[0], 1e-6);  // the first token sees only itself
  expect_gradient(f, {q, k, v});
}

TEST(Ops, EmbeddingPadRowsAndUpsample) {
  const Tensor table = random_tensor({5, 3}, 33), ids = int_tensor({4, 0, 4, 2}, {2, 2});
  EXPECT_EQ(run([](Values v) { return embedding(v[0], v[1]); }, {ids, table})[7],
            floats(table)[4 * 3 + 1]);
  expect_gradient([&](Values v) { return embedding(v[0].graph().constant("ids", ids), v[0]); },
                  {table});

  const Tensor x = random_tensor({2, 3, 2}, 34), token = test::f32_tensor({2}, {7, 8}),
               lengths = int_tensor({1, 3}, {2});
  const auto padded = run([](Values v) { return pad_rows(v[0], v[1], v[2]); }, {x, token, lengths});
  EXPECT_EQ(padded[1], floats(x)[1]);
  EXPECT_EQ(padded[2], 7);
  EXPECT_EQ(padded[5], 8);
  EXPECT_EQ(padded[11], floats(x)[11]);
  expect_gradient(
      [&](Values v) { return pad_rows(v[0], v[1], v[0].graph().constant("n", lengths)); },
      {x, token});

  EXPECT_EQ(
      run([](Values v) { return upsample2x(v[0]); }, {test::f32_tensor({1, 1, 1, 2}, {1, 2})}),
      (std::vector<float>{1, 1, 2, 2, 1, 1, 2, 2}));
  expect_gradient([](Values v) { return upsample2x(v[0]); }, {random_tensor({2, 2, 2, 3}, 35)});
}

TEST(Ops, MeanSquaredErrorAndCast) {
  const std::vector<Tensor> in = {random_tensor({3, 4}, 36), random_tensor({3, 4}, 37)};
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += std::pow(double{floats(in[0])[i]} - floats(in[1])[i], 2);
  EXPECT_NEAR(run([](Values v) { return mean_squared_error(v[0], v[1]); }, in)[0], sum / 12, 1e-6);
  expect_gradient([](Values v) { return mean_squared_error(v[0], v[1]); }, in);
  const Tensor rounded =
      run_op([](Values v) { return cast(v[0], DType::kBF16); }, {in[0]}, cpu_scalar_kernels());
  EXPECT_EQ(rounded.dtype(), DType::kBF16);
  EXPECT_EQ(rounded.as<bf16>()[3].bits, to_bf16(floats(in[0])[3]).bits);
}

TEST(Ops, ShapesThatDoNotFitAreNamed) {
  Graph graph;
  const Value a = graph.input("a", {{2, 3}, DType::kF32, {}}),
              b = graph.input("b", {{4}, DType::kF32, {}});
  const auto error = [](const auto& build) {
    try {
      build();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("(none)");
  };
  EXPECT_EQ(error([&] { add(a, b); }), "add: shapes [2, 3] and [4] do not broadcast");
  EXPECT_EQ(error([&] { linear(a, a); }), "(none)");
  EXPECT_EQ(error([&] { rms_norm(a, b, 1e-5f); }), "rms_norm: weight [4] does not fit [2, 3]");
  EXPECT_EQ(error([&] { slice(a, 1, 2, 9); }), "slice: [2, 9) of axis 1 of [2, 3]");
  EXPECT_EQ(error([&] { reshape(a, {5}); }), "reshape: [2, 3] has not as many values as [5]");
}

TEST(Ops, GaussianIsNormalAndAFunctionOfItsKeyAlone) {
  const auto rows = [](const std::vector<int>& keys, const Shape& shape) {
    return run([&](Values v) { return gaussian(v[0], shape); }, {int_tensor(keys, {shape[0], 4})});
  };
  const auto both = rows({1, 0, 5, 0, -7, 3, 5, 0}, {2, 33, 301});
  const size_t n = both.size() / 2;
  EXPECT_EQ(std::vector<float>(both.begin() + static_cast<std::ptrdiff_t>(n), both.end()),
            rows({-7, 3, 5, 0}, {1, 33, 301}));
  for (const std::vector<int>& other :
       {std::vector<int>{2, 0, 5, 0}, {1, 1, 5, 0}, {1, 0, 6, 0}, {1, 0, 5, 1}}) {
    EXPECT_NE(rows(other, {1, 8})[0], both[0]);
  }
  double moments[4] = {}, product = 0, within = 0;
  for (size_t i = 0; i < n; ++i) {
    for (int m = 0; m < 4; ++m) moments[m] += std::pow(both[i], m + 1) / static_cast<double>(n);
    product += both[i] * both[n + i] / static_cast<double>(n);
    within += std::abs(both[i]) < 1 ? 1.0 / static_cast<double>(n) : 0;
  }
  EXPECT_NEAR(moments[0], 0, 0.04);  // four times what chance leaves of 9933 numbers
  EXPECT_NEAR(moments[1], 1, 0.06);
  EXPECT_NEAR(moments[2], 0, 0.16);
  EXPECT_NEAR(moments[3], 3, 0.4);
  EXPECT_NEAR(product, 0, 0.04);
  EXPECT_NEAR(within, 0.6827, 0.02);
}

TEST(Ops, DropoutIsAFunctionOfItsKeyAndSite) {
  constexpr int64_t kCount = 20000;
  const Tensor ones = test::f32_tensor({1, kCount}, std::vector<float>(kCount, 1.0f));
  const auto kept = [&](const std::vector<int>& key, const DropoutAttributes& how) {
    return run([&](Values v) { return dropout(v[0], v[1], how); }, {ones, int_tensor(key, {1, 4})});
  };
  const auto y = kept({1, 2, 3, 4}, {0.25f, 0});
  int zeros = 0;
  for (const float v : y) {
    ASSERT_TRUE(v == 0 || v == 1.0f / 0.75f) << v;
    zeros += v == 0 ? 1 : 0;
  }
  EXPECT_NEAR(zeros, 0.25 * kCount, 4 * std::sqrt(0.25 * 0.75 * kCount));
  EXPECT_EQ(kept({1, 2, 3, 4}, {0.25f, 0}), y);
  EXPECT_NE(kept({1, 2, 3, 5}, {0.25f, 0}), y);
  EXPECT_NE(kept({1, 2, 3, 4}, {0.25f, 1}), y);
  EXPECT_EQ(kept({1, 2, 3, 4}, {0, 0}), std::vector<float>(kCount, 1.0f));
  // What is dropped is zero, whatever it was.
  const Tensor infinite = test::f32_tensor({1, 64}, std::vector<float>(64, HUGE_VALF));
  for (const float v : run([](Values v) { return dropout(v[0], v[1], {0.5f, 0}); },
                           {infinite, int_tensor({0, 0, 0, 0}, {1, 4})})) {
    EXPECT_FALSE(std::isnan(v));
  }
  const Tensor keys = int_tensor({7, 8, 9, 10, 1, 0, 0, 1}, {2, 4});
  expect_gradient(
      [&](Values v) {
        return dropout(v[0], v[0].graph().constant("keys", keys), {0.4f, 3}) * v[0];
      },
      {random_tensor({2, 9}, 4)});
}

TEST(Catalogue, EveryForwardOpHasAGradientRule) {
  for (int i = 0; i < kOpCount; ++i) {
    const OpInfo& info = op_info(static_cast<Op>(i));
    const bool after_autodiff = info.name.ends_with("_grad") || info.name == "fused_rows";
    const bool of_nothing = info.name == "gaussian";
    const bool with_others = info.name == "slice";  // of one value: gathered by autodiff itself
    EXPECT_EQ(info.gradient == nullptr, after_autodiff || of_nothing || with_others) << info.name;
  }
}

}  // namespace
}  // namespace halftone
