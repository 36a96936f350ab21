// Every function of the tested backend over the whole range of floats (all exponents, both signs,
// zero, denormals, infinities, NaN) against double: alone, inside fused rows, and its gradient.
#include <gtest/gtest.h>

#include <limits>

#include "halftone/passes/autodiff.h"
#include "tests/support/backend.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::floats;
using Values = std::span<const Value>;

// A few mantissas of every exponent, and a finer grid where functions bend.
std::vector<float> every_magnitude() {
  std::vector<float> values = {0.0f, -0.0f, HUGE_VALF, -HUGE_VALF, NAN};
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const uint32_t mantissa : {0x000001u, 0x200000u, 0x5A5A5Au, 0x7FFFFFu}) {
      const uint32_t bits = exponent << 23 | mantissa;
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      values.push_back(value);
      values.push_back(-value);
    }
  }
  for (float x = -210; x < 210; x += 0.173f) values.push_back(x);
  while (values.size() % 64 != 0) values.push_back(1.0f);
  return values;
}

double sigmoid_of(double x) {
  const double e = std::exp(-std::abs(x));
  return std::isnan(x) ? x : (x < 0 ? e : 1.0) / (1 + e);
}
double gelu_argument(double x) { return std::sqrt(8 / M_PI) * (x + 0.044715 * x * x * x); }

double normal_of(double x) { return std::erfc(-x * std::sqrt(0.5)) / 2; }

double value_of(Function function, double x) {
  switch (function) {
    case Function::kTanh:
      return std::tanh(x);
    case Function::kSigmoid:
      return sigmoid_of(x);
    case Function::kSilu:
      return x * sigmoid_of(x);
    case Function::kGelu:
      return x * sigmoid_of(gelu_argument(x));
    case Function::kQuickGelu:
      return x * sigmoid_of(1.702 * x);
    case Function::kErfGelu:
      return x * normal_of(x);
    case Function::kErfGeluSlope:
      return normal_of(x) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
    case Function::kSin:
      return std::sin(x);
    case Function::kCos:
      return std::cos(x);
  }
  return 0;
}
double slope_of(Function function, double x) {
  const double s = sigmoid_of(x), g = sigmoid_of(gelu_argument(x));
  switch (function) {
    case Function::kTanh:
      return 1 / std::pow(std::cosh(x), 2);
    case Function::kSigmoid:
      return s * sigmoid_of(-x);
    case Function::kSilu:
      return s * (1 + x * sigmoid_of(-x));
    case Function::kGelu:
      return g + x * g * sigmoid_of(-gelu_argument(x)) * std::sqrt(8 / M_PI) *
                     (1 + 3 * 0.044715 * x * x);
    case Function::kQuickGelu: {
      const double q = sigmoid_of(1.702 * x);
      return q * (1 + 1.702 * x * sigmoid_of(-1.702 * x));
    }
    case Function::kErfGelu:
      return value_of(Function::kErfGeluSlope, x);
    case Function::kErfGeluSlope:
      break;
    case Function::kSin:
      return std::cos(x);
    case Function::kCos:
      return -std::sin(x);
  }
  return 0;
}

constexpr Function kFunctions[] = {Function::kTanh, Function::kSigmoid,   Function::kSilu,
                                   Function::kGelu, Function::kQuickGelu, Function::kErfGelu,
                                   Function::kSin,  Function::kCos};
const char* name_of_function(Function function) {
  constexpr const char* kNames[] = {"tanh",       "sigmoid",  "silu", "gelu",
                                    "quick_gelu", "erf_gelu", "sin",  "cos"};
  for (size_t i = 0; i < std::size(kFunctions); ++i) {
    if (kFunctions[i] == function) return kNames[i];
  }
  return "";
}

// How far a result may be from its exact value.
struct InputBand {
  double relative, absolute;
  bool non_finite = true;  // NaN and Inf must be where the exact values have them
};

void expect_all(const std::vector<float>& got, const std::vector<float>& x,
                const std::function<double(double)>& exact, DType dtype, const InputBand& band,
                const std::string& what) {
  ASSERT_EQ(got.size(), x.size());
  int wrong = 0;
  for (size_t i = 0; i < got.size() && wrong < 5; ++i) {
    const double wanted = exact(x[i]);
    const auto stored = static_cast<float>(wanted);
    const float rounded = dtype == DType::kBF16 ? to_float(to_bf16(stored)) : stored;
    bool good = false;
    if (!std::isfinite(rounded)) {
      // Just below the largest number either is right.
      good = !band.non_finite || (std::isnan(wanted) ? std::isnan(got[i]) : got[i] == rounded) ||
             (std::isfinite(wanted) && std::abs(got[i]) > 3.3e38f);
    } else {
      good = std::abs(got[i] - wanted) <= band.relative * std::abs(wanted) + band.absolute;
    }
    if (good) continue;
    ++wrong;
    ADD_FAILURE() << what << "(" << x[i] << ") is " << got[i] << " instead of " << rounded;
  }
}

class ExtremesOfFunctions : public testing::TestWithParam<DType> {
 protected:
  Tensor tensor(const std::vector<float>& values, const Shape& shape) const {
    return GetParam() == DType::kBF16 ? test::bf16_tensor(shape, values)
                                      : test::f32_tensor(shape, values);
  }
  Tensor rows(const std::vector<float>& values) const {
    return tensor(values, {static_cast<int64_t>(values.size()) / 64, 64});
  }
  // Denormal results may be flushed to zero, on the way to the last digits of e^x as well.
  // The exponent of GELU's approximations is rounded before e^x makes a relative error of its
  // absolute one.
  InputBand band(Function f = Function::kSilu) const {
    const double f32 = f == Function::kGelu || f == Function::kQuickGelu ? 2e-5 : 3e-6;
    return {GetParam() == DType::kBF16 ? 4.1e-3 : f32, 2e-36};
  }

  Tensor run(const Value& result, const std::map<std::string, Tensor>& inputs, bool fused) const {
    auto graph = graph_;
    graph->output("y", result);
    if (fused) graph = test::tested_compile(*graph);
    return test::tested_program(graph, {}).run(inputs).at("y");
  }
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
};
INSTANTIATE_TEST_SUITE_P(, ExtremesOfFunctions, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(ExtremesOfFunctions, Functions) {
  const Tensor x = rows(every_magnitude());
  for (const Function f : kFunctions) {
    const Tensor y = test::run_op([=](Values v) { return apply(f, v[0]); }, {x},
                                  test::tested_kernels(), test::tested_stream());
    expect_all(
        floats(y), floats(x), [=](double v) { return value_of(f, v); }, GetParam(), band(f),
        name_of_function(f));
  }
}

TEST_P(ExtremesOfFunctions, FunctionsInsideFusedRows) {
  const Tensor x = rows(every_magnitude());
  const std::vector<float> ones(64, 1.0f);
  for (const Function f : kFunctions) {
    graph_ = std::make_shared<Graph>();
    const Value in = graph_->input("x", {x.shape(), GetParam(), {}});
    const Value one = graph_->input("one", {{64}, DType::kF32, {}});
    const Tensor y =
        run(apply(f, in * one), {{"x", x}, {"one", test::f32_tensor({64}, ones)}}, true);
    expect_all(
        floats(y), floats(x), [=](double v) { return value_of(f, v); }, GetParam(), band(f),
        std::string("fused ") + name_of_function(f));
  }
}

TEST_P(ExtremesOfFunctions, GatedUnits) {
  const Tensor gate = rows(every_magnitude());
  for (const float up : {1.0f, -0.5f, 1e30f}) {
    const Tensor other = rows(std::vector<float>(static_cast<size_t>(gate.numel()), up));
    const float stored = floats(other)[0];
    for (const bool fused : {false, true}) {
      graph_ = std::make_shared<Graph>();
      const Value g = graph_->input("gate", {gate.shape(), GetParam(), {}});
      const Value u = graph_->input("up", {gate.shape(), GetParam(), {}});
      const Value product = silu_mul(g, u);
      const Tensor y =
          run(fused ? affine(product, 1, 0) : product, {{"gate", gate}, {"up", other}}, fused);
      InputBand allowed = band();
      allowed.absolute *= std::max(1.0f, std::abs(stored));
      expect_all(
          floats(y), floats(gate), [=](double v) { return value_of(Function::kSilu, v) * stored; },
          GetParam(), allowed, fmt::format("{}silu_mul by {} of ", fused ? "fused " : "", up));
    }
  }
}

// Differences of nearly equal numbers lose digits: held to what matters beside a slope of 1.
TEST_P(ExtremesOfFunctions, Gradients) {
  std::vector<float> values = every_magnitude();
  for (float& v : values) v = std::isfinite(v) ? v : 1.0f;
  const Tensor x = rows(values);
  for (const Function f : kFunctions) {
    graph_ = std::make_shared<Graph>();
    const Value in = graph_->input("x", {x.shape(), GetParam(), {}});
    const Value loss = sum_to(cast(apply(f, in), DType::kF32), {1});
    const Value wrt[] = {in};
    const Tensor y = run(differentiate(loss, wrt)[0], {{"x", x}}, false);
    const InputBand allowed = {0, GetParam() == DType::kBF16 ? 0.06 : 1e-5};
    expect_all(
        floats(y), floats(x), [=](double v) { return slope_of(f, v); }, GetParam(), allowed,
        std::string("slope of ") + name_of_function(f));
  }
}

// Scores far apart, far below zero and far above it: softmax depends on differences alone.
TEST_P(ExtremesOfFunctions, AttentionScores) {
  constexpr int64_t kQueries = 5, kKeys = 37, kDim = 64;
  for (const float spread : {1.0f, 90.0f, 300.0f, 1e4f, 1e18f, 1e30f}) {
    for (const float offset : {0.0f, -1.0f, 1.0f}) {
      std::vector<float> q(kQueries * kDim, 0.0f), k(kKeys * kDim, 0.0f);
      for (int64_t t = 0; t < kQueries; ++t) q[t * kDim] = 1.0f;
      for (int64_t s = 0; s < kKeys; ++s) {
        k[s * kDim] = spread * (offset + static_cast<float>(s * 7 % kKeys) / kKeys);
      }
      const Tensor qs = tensor(q, {1, kQueries, 1, kDim}), ks = tensor(k, {1, kKeys, 1, kDim});
      const Tensor vs = test::random_tensor({1, kKeys, 1, kDim}, 5, GetParam());
      const test::Builder f = [](Values in) {
        return attention(in[0], in[1], in[2], {}, {1.0f, false});
      };
      const auto fast =
          test::run_op(f, {qs, ks, vs}, test::tested_kernels(), test::tested_stream());
      const auto exact = test::run_op(f, {qs, ks, vs}, cpu_scalar_kernels());
      EXPECT_LE(test::relative_error(floats(fast), floats(exact)),
                GetParam() == DType::kF32 ? 3e-6 + 1e-7 * std::min(spread, 100.0f) : 6e-3)
          << "scores around " << offset * spread << ", " << spread << " apart";
    }
  }
}

TEST_P(ExtremesOfFunctions, AttentionShowsNan) {
  constexpr int64_t kKeys = 37, kDim = 64;
  for (const int64_t where : {int64_t{0}, int64_t{20}, kKeys - 1}) {
    std::vector<float> k = test::gaussians(3, kKeys * kDim);
    k[where * kDim + 5] = NAN;
    const Tensor q = test::random_tensor({1, 3, 1, kDim}, 4, GetParam());
    const Tensor v = test::random_tensor({1, kKeys, 1, kDim}, 5, GetParam());
    const Tensor y = test::run_op(
        [](Values in) { return attention(in[0], in[1], in[2], {}, {0.1f, false}); },
        {q, tensor(k, {1, kKeys, 1, kDim}), v}, test::tested_kernels(), test::tested_stream());
    for (const float value : floats(y)) ASSERT_TRUE(std::isnan(value)) << "key " << where;
  }
}

}  // namespace
}  // namespace halftone
