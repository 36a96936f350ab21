// How long it takes from a model's description to a plan, before anything runs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "halftone/base/text.h"
#include "halftone/cli/bench_measured.h"
#include "halftone/cli/cli.h"
#include "halftone/graph/catalogue.h"
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

// Nodes of one kind are one problem: one generated kernel, or one plan of a library, serves them
// all.
size_t count_kinds(const Graph& graph) {
  std::set<std::string> kinds;
  for (const Node& node : graph.nodes()) {
    std::string kind(op_info(node.op).name);
    if (const auto* fused = std::get_if<FusedRowsAttributes>(&node.attributes)) {
      for (const RowStep& step : fused->steps) kind += fmt::format(" {}", name_of(step.function));
    }
    for (const auto* ids : {&node.inputs, &node.outputs}) {
      for (const int id : *ids) {
        const ValueType& type = graph.values()[id].type;
        kind += fmt::format(" {} {}{}", name_of(type.dtype), type.shape,
                            type.quantized ? type.quantized->name : "");
      }
    }
    kinds.insert(std::move(kind));
  }
  return kinds.size();
}

// A whole Z-Image of so many layers.
Measured whole_zimage(const BenchOptions& options) {
  zimage::TransformerConfig config = bench_config(options);
  config.layers = options.layers;
  const zimage::TransformerShape shape{options.batch, 128, 128, 128, false};
  Measured m;
  m.layers = config.layers;
  m.build = [=](DType activations) {
    return zimage::build_transformer(config, shape, {activations, false});
  };
  m.recipe = zimage::default_recipe;
  return m;
}

}  // namespace

void bench_compile(const BenchOptions& options) {
  const Measured measured =
      options.family.empty() ? whole_zimage(options) : find_measured(options, options.layers);
  // All passes that a GPU asks for.
  Kernels kernels = cpu_kernels();
  kernels.wide_products = kernels.products_apply_gelu = kernels.strided_attention = true;
  kernels.products_add = kernels.channels_last = true;
  for (const std::string& precision : options.precisions) {
    const Format format = *find_format(precision);
    const DType activations = precision == "fp32" ? DType::kF32 : DType::kBF16;
    CompileOptions how;
    if (format.quantized()) how.recipe = measured.recipe(format);
    std::vector<double> build, compiling, plan;
    size_t nodes = 0, kinds = 0;
    for (int i = 0; i < std::max(options.runs, 5); ++i) {
      Lap lap;
      const auto graph = measured.build(activations);
      build.push_back(lap());
      const auto compiled = compile(*graph, how, kernels, {1}).graph;
      compiling.push_back(lap());
      plan_memory(*compiled, kernels.strided_attention);
      plan.push_back(lap());
      nodes = compiled->nodes().size();
      kinds = count_kinds(*compiled);
    }
    const double total = median(build) + median(compiling) + median(plan);
    if (options.json) {
      print_json({{"bench", "compile"},
                  {"precision", precision},
                  {"family", options.family.empty() ? "z-image" : options.family},
                  {"layers", measured.layers},
                  {"nodes", nodes},
                  {"kinds", kinds},
                  {"build_milliseconds", median(build)},
                  {"compile_milliseconds", median(compiling)},
                  {"plan_milliseconds", median(plan)},
                  {"milliseconds", total}});
      continue;
    }
    fmt::print("{:<11} {:>7} ms: build {}, compile {}, plan {}; {} nodes of {} kinds\n", precision,
               three_digits(total), three_digits(median(build)), three_digits(median(compiling)),
               three_digits(median(plan)), nodes, kinds);
  }
}

}  // namespace halftone::cli
