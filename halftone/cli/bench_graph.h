// What benchmarks on a GPU share: a graph made ready there with random weights, and where its time
// goes. Times are the device's own, without copies from and to the host; weights are of full size,
// and each layer's are memory of its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/cli/bench_support.h"
#include "halftone/models/zimage/names.h"
#include "halftone/passes/compile.h"
#include "halftone/runtime/backend.h"

namespace halftone::cli {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start);

Backend device_backend(const BenchOptions& options);  // an Error where there is no GPU
int threads_of(const BenchOptions& options);
int runs_of(const BenchOptions& options);
DType activations_of(const std::string& precision);

class DeviceBench {
 public:
  using Recipe = std::function<QuantizeRecipe(const Format&)>;
  DeviceBench(const std::shared_ptr<Graph>& graph, const std::string& precision,
              const BenchOptions& options, const Backend& backend,
              std::shared_ptr<Arena> arena = std::make_shared<Arena>(),
              const Recipe& recipe = zimage::default_recipe, CompileOptions compile = {});

  // Until it runs at full speed: kernels compiled, algorithms chosen, launches recorded.
  double warm_up(const Inputs& inputs);

  Program& program() { return *program_; }
  const std::vector<std::string>& unfused() const { return unfused_; }

 private:
  std::unique_ptr<Program> program_;
  std::vector<std::string> unfused_;
  double plan_seconds_ = 0;
};

// Bytes that a node must at least move, and its time.
struct NodeCost {
  std::string name;
  double seconds = 0, bytes = 0;
  int count = 0;
};

// Median time of each kind of node, the longest first.
std::vector<NodeCost> profile(Program& program, const Inputs& inputs, int runs);
nlohmann::ordered_json profile_json(const std::vector<NodeCost>& costs, double bandwidth);
void print(const std::vector<NodeCost>& costs, double bandwidth);

}  // namespace halftone::cli
