// How long it takes from a model's description to a plan, before anything runs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "halftone/base/text.h"
#include "halftone/cli/bench_support.h"
#include "halftone/cli/cli.h"
#include "halftone/models/zimage/names.h"
#include "halftone/models/zimage/transformer.h"
#include "halftone/passes/compile.h"
#include "halftone/passes/plan.h"

namespace halftone::cli {
namespace {

// Milliseconds between calls.
class Lap {
 public:
  double operator()() {
    const auto now = std::chrono::steady_clock::now();
    const double past = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return past;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

void bench_compile(const BenchOptions& options) {
  zimage::TransformerConfig config = bench_config(options);
  config.layers = options.layers;
  // All passes that a GPU asks for.
  Kernels kernels = cpu_kernels();
  kernels.wide_products = kernels.products_apply_gelu = kernels.strided_attention = true;
  const zimage::TransformerShape shape{options.batch, 128, 128, 128, false};
  for (const std::string& precision : options.precisions) {
    const Format format = *find_format(precision);
    const DType activations = precision == "fp32" ? DType::kF32 : DType::kBF16;
    CompileOptions how;
    if (format.quantized()) how.recipe = zimage::default_recipe(format);
    std::vector<double> build, compiling, plan;
    size_t nodes = 0;
    for (int i = 0; i < std::max(options.runs, 5); ++i) {
      Lap lap;
      const auto graph = zimage::build_transformer(config, shape, {activations, false});
      build.push_back(lap());
      const auto compiled = compile(*graph, how, kernels, {1}).graph;
      compiling.push_back(lap());
      plan_memory(*compiled, kernels.strided_attention);
      plan.push_back(lap());
      nodes = compiled->nodes().size();
    }
    const double total = median(build) + median(compiling) + median(plan);
    if (options.json) {
      print_json({{"bench", "compile"},
                  {"precision", precision},
                  {"layers", options.layers},
                  {"nodes", nodes},
                  {"build_milliseconds", median(build)},
                  {"compile_milliseconds", median(compiling)},
                  {"plan_milliseconds", median(plan)},
                  {"milliseconds", total}});
      continue;
    }
    fmt::print("{:<11} {:>7} ms: build {}, compile {}, plan {}; {} nodes\n", precision,
               three_digits(total), three_digits(median(build)), three_digits(median(compiling)),
               three_digits(median(plan)), nodes);
  }
}

}  // namespace halftone::cli
