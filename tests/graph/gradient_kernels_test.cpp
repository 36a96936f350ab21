// Values and gradients of every op, by the tested kernels and by the reference: one graph with all
// of them as outputs, in F32 and BF16.
#include <gtest/gtest.h>

#include <set>

#include "halftone/graph/catalogue.h"
#include "tests/support/backend.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::int_tensor;
using test::random_tensor;
using Values = std::span<const Value>;

constexpr double kF32 = 5e-6, kF32Sums = 2e-5, kBF16 = 5e-3;

struct GradientCase {
  std::string name;
  test::Builder f;
  std::vector<Tensor> inputs;
  size_t wrt;  // the first so many inputs have gradients
  double f32_tolerance = kF32;
};

// Floats of the type under test, that matrices and norms are made of.
struct Random {
  DType dtype;
  mutable uint64_t seed = 100;
  Tensor operator()(const Shape& shape) const { return random_tensor(shape, seed++, dtype); }
};

void add_elementwise(std::vector<GradientCase>& cases, const Random& random) {
  const Shape full{2, 33, 64}, ragged{5, 7, 13};
  cases.push_back({"add", [](Values v) { return v[0] + v[1]; }, {random(full), random({64})}, 2});
  cases.push_back({"add_ragged",
                   [](Values v) { return v[0] + v[1]; },
                   {random(ragged), random({5, 1, 13})},
                   2});
  cases.push_back(
      {"mul", [](Values v) { return v[0] * v[1]; }, {random(full), random({2, 1, 64})}, 2});
  cases.push_back({"mul_column",
                   [](Values v) { return v[0] * v[1]; },
                   {random({40, 300}), random({40, 1})},
                   2});
  cases.push_back(
      {"affine", [](Values v) { return affine(v[0], 1.7f, -0.3f); }, {random(ragged)}, 1});
  const std::pair<const char*, Function> functions[] = {{"tanh", Function::kTanh},
                                                        {"sigmoid", Function::kSigmoid},
                                                        {"silu", Function::kSilu},
                                                        {"gelu", Function::kGelu},
                                                        {"quick_gelu", Function::kQuickGelu},
                                                        {"erf_gelu", Function::kErfGelu},
                                                        {"sin", Function::kSin},
                                                        {"cos", Function::kCos}};
  for (const auto& [name, function] : functions) {
    cases.push_back({name,
                     [function = function](Values v) { return apply(function, v[0]); },
                     {random({9, 1031})},
                     1});
  }
  cases.push_back(
      {"silu_mul", [](Values v) { return silu_mul(v[0], v[1]); }, {random(full), random(full)}, 2});
  cases.push_back({"cast",
                   [](Values v) {
                     const bool narrow = v[0].dtype() == DType::kF32;
                     return cast(v[0], narrow ? DType::kBF16 : DType::kF32);
                   },
                   {random(ragged)},
                   1,
                   kBF16});
  cases.push_back({"mean_squared_error",
                   [](Values v) { return mean_squared_error(v[0], v[1]); },
                   {random(full), random(full)},
                   2});
}

void add_shapes(std::vector<GradientCase>& cases, const Random& random) {
  const Shape shape{3, 40, 64};
  for (const Shape& to : {Shape{64}, Shape{40, 1}, Shape{3, 1, 64}, Shape{3, 1, 1}, Shape{1},
                          Shape{1, 40, 64}, Shape{1, 40, 1}}) {
    cases.push_back(
        {"sum_to_" + to.str(), [to](Values v) { return sum_to(v[0], to); }, {random(shape)}, 1});
  }
  cases.push_back(
      {"sum_to_many_rows", [](Values v) { return sum_to(v[0], {65}); }, {random({4, 700, 65})}, 1});
  cases.push_back(
      {"sum_to_one", [](Values v) { return sum_to(v[0], {1}); }, {random({70000})}, 1, kF32Sums});
  cases.push_back({"broadcast",
                   [](Values v) { return broadcast_to(v[0], {5, 3, 40, 64}); },
                   {random({3, 1, 64})},
                   1});
  cases.push_back(
      {"reshape", [](Values v) { return reshape(v[0], {64, 120}); }, {random(shape)}, 1});
  for (const std::vector<int>& order : {std::vector<int>{2, 0, 1}, {0, 2, 1}, {1, 0, 2}}) {
    cases.push_back(
        {"permute", [order](Values v) { return permute(v[0], order); }, {random({3, 37, 70})}, 1});
  }
  cases.push_back({"concat",
                   [](Values v) { return concat({v[0], v[1], v[0]}, 1); },
                   {random(shape), random({3, 7, 64})},
                   2});
  cases.push_back({"slice", [](Values v) { return slice(v[0], 1, 3, 29); }, {random(shape)}, 1});
  cases.push_back(
      {"slice_inner", [](Values v) { return slice(v[0], 2, 5, 62); }, {random(shape)}, 1});
  cases.push_back({"pad", [](Values v) { return pad(v[0], 2, 1, 2); }, {random(shape)}, 1});
  const Tensor keys = test::int_tensor({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  cases.push_back(
      {"dropout",
       [=](Values v) { return dropout(v[0], v[0].graph().constant("keys", keys), {0.3f, 2}); },
       {random({2, 19, 65})},
       1});
}

void add_products(std::vector<GradientCase>& cases, const Random& random) {
  cases.push_back({"linear",
                   [](Values v) { return linear(v[0], v[1], v[2]); },
                   {random({2, 19, 64}), random({48, 64}), random({48})},
                   3});
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      cases.push_back(
          {"matmul",
           [=](Values v) { return matmul(v[0], v[1], ta, tb); },
           {random(ta ? Shape{33, 20} : Shape{20, 33}), random(tb ? Shape{21, 33} : Shape{33, 21})},
           2});
    }
  }
  const ConvAttributes same{1, {1, 1, 1, 1}}, halved{2, {0, 0, 1, 1}};
  for (const ConvAttributes& how : {same, halved}) {
    cases.push_back({"conv2d",
                     [=](Values v) { return conv2d(v[0], v[1], v[2], how); },
                     {random({2, 8, 10, 12}), random({16, 8, 3, 3}), random({16})},
                     3,
                     kF32Sums});
    ConvAttributes last = how;
    last.channels_last = true;
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{8, 16}, {4, 9}}) {
      cases.push_back({"conv2d_channels_last",
                       [=](Values v) { return conv2d(v[0], v[1], v[2], last); },
                       {random({2, 10, 12, in}), random({out, in, 3, 3}), random({out})},
                       3,
                       kF32Sums});
    }
  }
}

void add_norms(std::vector<GradientCase>& cases, const Random& random) {
  for (const int64_t cols : {15, 128, 1100, 2056}) {
    cases.push_back({"rms_norm",
                     [](Values v) { return rms_norm(v[0], v[1], 1e-5f); },
                     {random({3, 70, cols}), random({cols})},
                     2,
                     kF32Sums});
    cases.push_back({"layer_norm",
                     [](Values v) { return layer_norm(v[0], 1e-6f); },
                     {random({3, 4, cols})},
                     1,
                     kF32Sums});
  }
  for (const Shape& shape : {Shape{2, 12, 9, 11}, Shape{1, 12, 96, 96}}) {
    cases.push_back({"group_norm",
                     [](Values v) { return group_norm(v[0], v[1], v[2], 4, 1e-6f); },
                     {random(shape), random({12}), random({12})},
                     3,
                     kF32Sums});
  }
}

void add_pictures_with_channels_last(std::vector<GradientCase>& cases, const Random& random) {
  for (const Shape& shape : {Shape{2, 9, 11, 12}, Shape{1, 96, 96, 16}, Shape{3, 5, 7, 64}}) {
    const Shape width{shape[3]};
    cases.push_back({"group_norm_channels_last",
                     [](Values v) { return group_norm(v[0], v[1], v[2], 4, 1e-6f, true); },
                     {random(shape), random(width), random(width)},
                     3,
                     kF32Sums});
    cases.push_back({"upsample2x_channels_last",
                     [](Values v) { return upsample2x(v[0], true); },
                     {random(shape)},
                     1});
  }
}

void add_attention(std::vector<GradientCase>& cases, const Random& random) {
  for (const int64_t dim : {20, 64, 128, 160}) {
    const Tensor q = random({2, 70, 4, dim}), k = random({2, 83, 2, dim}),
                 v = random({2, 83, 2, dim});
    for (const bool causal : {false, true}) {
      cases.push_back(
          {"attention",
           [=](Values in) { return attention(in[0], in[1], in[2], {}, {0.1f, causal}); },
           {q, k, v},
           3,
           kF32Sums});
    }
    cases.push_back({"attention_of_lengths",
                     [](Values in) { return attention(in[0], in[1], in[2], in[3], {0.1f, false}); },
                     {q, k, v, int_tensor({5, 83}, {2})},
                     3,
                     kF32Sums});
  }
  for (const Shape& shape : {Shape{4, 140, 147}, Shape{2, 4, 140, 147}}) {
    for (const bool causal : {false, true}) {
      cases.push_back(
          {"attention_with_bias",
           [=](Values in) { return attention(in[0], in[1], in[2], in[4], {0.1f, causal}, in[3]); },
           {random({2, 140, 4, 20}), random({2, 147, 2, 20}), random({2, 147, 2, 20}),
            random(shape), int_tensor({101, 147}, {2})},
           4,
           kF32Sums});
    }
  }
  // As wide as the single head of a VAE.
  const Tensor q = random({2, 70, 2, 320}), k = random({2, 83, 1, 320}),
               v = random({2, 83, 1, 320});
  cases.push_back({"wide_attention",
                   [](Values in) { return attention(in[0], in[1], in[2], in[3], {0.06f, false}); },
                   {q, k, v, int_tensor({60, 83}, {2})},
                   3,
                   kF32Sums});
}

void add_tokens(std::vector<GradientCase>& cases, const Random& random) {
  for (const int64_t half : {5, 16}) {
    for (const auto layout : {RopeLayout::kInterleaved, RopeLayout::kHalves}) {
      cases.push_back({"rope",
                       [=](Values v) { return rope(v[0], v[1], v[2], {layout, false}); },
                       {random({2, 9, 3, 2 * half}), random_tensor({2, 9, half}, 7),
                        random_tensor({2, 9, half}, 8)},
                       1});
    }
  }
  for (const int64_t cols : {13, 64}) {
    cases.push_back({"embedding",
                     [](Values v) { return embedding(v[1], v[0]); },
                     {random({11, cols}), int_tensor({4, 0, 4, 10, 4, 2}, {2, 3})},
                     1});
    cases.push_back({"pad_rows",
                     [](Values v) { return pad_rows(v[0], v[1], v[2]); },
                     {random({3, 21, cols}), random({cols}), int_tensor({1, 21, 9}, {3})},
                     2});
  }
  for (const int64_t width : {7, 16}) {
    cases.push_back(
        {"upsample2x", [](Values v) { return upsample2x(v[0]); }, {random({2, 3, 5, width})}, 1});
  }
}

std::vector<GradientCase> cases_in(DType dtype) {
  std::vector<GradientCase> cases;
  const Random random{dtype};
  add_elementwise(cases, random);
  add_shapes(cases, random);
  add_products(cases, random);
  add_norms(cases, random);
  add_pictures_with_channels_last(cases, random);
  add_attention(cases, random);
  add_tokens(cases, random);
  return cases;
}

struct GradientProblem {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::map<std::string, Tensor> inputs;
};

// f(inputs), and the gradients of sum(f * r), r random.
GradientProblem problem_of(const GradientCase& c) {
  GradientProblem p;
  std::vector<Value> values;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const std::string name = std::to_string(i);
    values.push_back(p.graph->input(name, {c.inputs[i].shape(), c.inputs[i].dtype(), {}}));
    p.inputs[name] = c.inputs[i];
  }
  const Value y = c.f(values);
  p.graph->output("y", y);
  const Value r = p.graph->constant("r", random_tensor(y.shape(), 4242, y.dtype()));
  const auto gradients =
      differentiate(sum_to(y * r, {1}), std::span<const Value>(values).first(c.wrt));
  for (size_t i = 0; i < gradients.size(); ++i)
    p.graph->output("g" + std::to_string(i), gradients[i]);
  return p;
}

double norm_of(const std::vector<float>& values) {
  double squares = 0;
  for (const float v : values) squares += double{v} * v;
  return std::sqrt(squares);
}

class GradientKernels : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(, GradientKernels, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(GradientKernels, AgreeWithTheReference) {
  for (const GradientCase& c : cases_in(GetParam())) {
    SCOPED_TRACE(fmt::format("{} of {}", c.name, c.inputs[0].shape()));
    const GradientProblem p = problem_of(c);
    const auto expected = Program(p.graph, {}, cpu_scalar_kernels(), {}).run(p.inputs);
    const auto actual = test::tested_program(p.graph, {}).run(p.inputs);
    const double tolerance = GetParam() == DType::kF32 ? c.f32_tolerance : kBF16;
    for (const auto& [name, reference] : expected) {
      const Tensor& tensor = actual.at(name);
      ASSERT_EQ(tensor.dtype(), reference.dtype());
      ASSERT_EQ(tensor.shape(), reference.shape());
      const auto values = test::floats(reference);
      EXPECT_GT(norm_of(values), 0) << name << " is zero; the test proves nothing";
      EXPECT_LE(test::relative_error(test::floats(tensor), values), tolerance) << name;
    }
  }
}

// Quantize passes gradients on as they are.
TEST(GradientKernelCases, AreOfEveryOpThatHasAGradient) {
  std::set<Op> seen;
  for (const GradientCase& c : cases_in(DType::kF32)) {
    const GradientProblem p = problem_of(c);
    for (const Node& node : p.graph->nodes()) seen.insert(node.op);
  }
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<Op>(i);
    if (op == Op::kQuantize || op_info(op).gradient == nullptr) continue;
    EXPECT_TRUE(seen.contains(op)) << op_info(op).name;
  }
}

}  // namespace
}  // namespace halftone
