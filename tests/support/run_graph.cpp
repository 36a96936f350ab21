#include "tests/support/run_graph.h"

namespace halftone::test {
namespace {

Tensor as_double(const Tensor& x) {
  Tensor y = Tensor::empty(DType::kF64, x.shape());
  for (int64_t i = 0; i < x.numel(); ++i) y.mutable_as<double>()[i] = x.as<float>()[i];
  return y;
}

}  // namespace

// The reference kernels read and write F64 as well, so that differences are not lost in rounding.
void expect_gradient(const Builder& f, const std::vector<Tensor>& inputs, double tolerance) {
  auto graph = std::make_shared<Graph>();
  std::vector<Value> values, wrt;
  std::map<std::string, Tensor> given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool real = inputs[i].dtype() == DType::kF32;
    given[std::to_string(i)] = real ? as_double(inputs[i]) : inputs[i];
    const DType dtype = real ? DType::kF64 : inputs[i].dtype();
    values.push_back(graph->input(std::to_string(i), {inputs[i].shape(), dtype, {}}));
    if (real) wrt.push_back(values.back());
  }
  const Value y = f(values);
  const Value r = graph->constant("r", as_double(random_tensor(y.shape(), 4242)));
  const Value loss = sum_to(y * r, {1});
  graph->output("loss", loss);
  const auto gradients = differentiate(loss, wrt);
  for (size_t i = 0; i < wrt.size(); ++i) {
    ASSERT_EQ(gradients[i].dtype(), wrt[i].dtype());
    graph->output("g" + graph->info(wrt[i]).name, gradients[i]);
  }
  Program program(graph, {}, cpu_scalar_kernels(), {});
  const auto results = program.run(given);
  for (const Value& input : wrt) {
    const std::string name = graph->info(input).name;
    const Tensor& analytic = results.at("g" + name);
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < analytic.numel(); ++i) {
      constexpr double kStep = 1e-5;
      auto moved = [&](double by) {
        auto changed = given;
        Tensor x = Tensor::empty(DType::kF64, analytic.shape());
        std::copy_n(given.at(name).as<double>().begin(), x.numel(), x.mutable_as<double>().begin());
        x.mutable_as<double>()[i] += by;
        changed[name] = x;
        return program.run(changed).at("loss").as<double>()[0];
      };
      const double numeric = (moved(kStep) - moved(-kStep)) / (2 * kStep);
      difference += std::pow(analytic.as<double>()[i] - numeric, 2);
      norm += numeric * numeric;
    }
    EXPECT_GT(norm, 0) << "input " << name << " has no influence; the test proves nothing";
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm) + 1e-9) << "input " << name;
  }
}

}  // namespace halftone::test
