// Runs a function of values as a graph, and checks its gradient by finite differences.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "halftone/graph/ops.h"
#include "halftone/passes/autodiff.h"
#include "halftone/runtime/program.h"
#include "halftone/tensor/float_values.h"
#include "tests/support/tensors.h"

namespace halftone::test {

using Builder = std::function<Value(std::span<const Value>)>;

inline Tensor random_tensor(const Shape& shape, uint64_t seed, DType dtype = DType::kF32) {
  const auto values = gaussians(seed, shape.numel());
  return dtype == DType::kBF16 ? bf16_tensor(shape, values) : f32_tensor(shape, values);
}

inline std::vector<float> floats(const Tensor& t) { return float_values(t); }

inline Tensor int_tensor(const std::vector<int32_t>& values, const Shape& shape) {
  Tensor t = Tensor::empty(DType::kI32, shape);
  std::copy(values.begin(), values.end(), t.mutable_as<int32_t>().begin());
  return t;
}

// f(inputs), with the inputs called "0", "1", ...
inline Tensor run_op(const Builder& f, const std::vector<Tensor>& inputs, const Kernels& kernels,
                     Stream stream = {2}) {
  auto graph = std::make_shared<Graph>();
  std::vector<Value> values;
  std::map<std::string, Tensor> given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    values.push_back(graph->input(std::to_string(i), {inputs[i].shape(), inputs[i].dtype(), {}}));
    given[std::to_string(i)] = inputs[i];
  }
  graph->output("y", f(values));
  return Program(graph, {}, kernels, stream).run(given).at("y");
}

inline double relative_error(const std::vector<float>& y, const std::vector<float>& reference) {
  EXPECT_EQ(y.size(), reference.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < y.size() && i < reference.size(); ++i) {
    difference += std::pow(double{y[i]} - reference[i], 2);
    norm += std::pow(double{reference[i]}, 2);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// The gradient of sum(f(x) * r), r random, with respect to every F32 input, against central
// differences of the graph itself in float64. Fails for a rule that returns nothing or zeros.
void expect_gradient(const Builder& f, const std::vector<Tensor>& inputs, double tolerance = 1e-5);

}  // namespace halftone::test
