// A training step on a GPU: an adapter on every linear of a denoiser's blocks, forward, backward
// and optimizer, as `halftone train` runs it.
#include <fmt/format.h>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/cli/bench_graph.h"
#include "halftone/cli/bench_measured.h"
#include "halftone/cli/cli.h"
#include "halftone/graph/ops.h"
#include "halftone/models/zimage/transformer.h"
#include "halftone/passes/autodiff.h"

namespace halftone::cli {
namespace {

constexpr int64_t kRank = 16;

// The linears of blocks that formats are for; what modulates them stays as it is.
LoraSites sites_of(const Graph& graph, const DeviceBench::Recipe& recipe) {
  LoraSites sites;
  sites.rank = kRank;
  for (const auto& linear : quantize_linears(graph, recipe(formats::fp8)).report.converted) {
    sites.weights.insert(linear.weight);
  }
  return sites;
}

std::vector<std::string> trained_by(const LoraSites& sites) {
  std::vector<std::string> names;
  for (const std::string& weight : sites.weights) {
    names.push_back(lora_down_name(weight));
    names.push_back(lora_up_name(weight));
  }
  return names;
}

void add_squared_error(Graph& graph, std::span<const std::string> trained) {
  const Value y = cast(graph.outputs().begin()->second, DType::kF32);  // the only one
  const Value loss = mean_squared_error(y, graph.input("target", y.type()));
  std::vector<Value> wrt;
  for (const std::string& name : trained) wrt.push_back(graph.weights().at(name));
  const std::vector<Value> gradients = differentiate(loss, wrt);
  graph.output("loss", loss);
  for (size_t i = 0; i < trained.size(); ++i) graph.output(trained[i], gradients[i]);
}

// Seconds that the optimizer takes for so many parameters.
double optimizer_seconds(int64_t count, const Backend& backend, int threads) {
  const Stream stream = backend.stream(threads);
  const auto memory = backend.device->allocate(count * 16, "what is trained");
  const auto part = [&](int64_t i) {
    return View{memory->address() + i * count * 4, DType::kF32, {count}};
  };
  for (int64_t i = 0; i < 4; ++i) backend.kernels->fill.launch({0, part(i)}, stream);
  AdamWArgs args;
  args.gradients = {part(0).data, DType::kF32, {count}};
  args.parameters = part(1);
  args.first = part(2);
  args.second = part(3);
  return backend.device->time([&] { backend.kernels->adamw.launch(args, stream); });
}

// One linear with an adapter: y = x W^T + adapter, and the gradients of x and of the adapter for a
// given gradient of y.
std::shared_ptr<Graph> one_linear(int64_t tokens, int64_t dim, DType dtype) {
  auto graph = std::make_shared<Graph>();
  const auto region = graph->region("block", "layers.0");
  const Value x = graph->input("x", {{1, tokens, dim}, dtype, {}});
  const Value weight = graph->weight("layers.0.linear.weight", {{dim, dim}, dtype, {}});
  graph->output("y", linear(x, weight));
  return graph;
}

void add_gradients(Graph& graph, std::span<const std::string> trained) {
  const Value y = graph.outputs().at("y"), dy = graph.input("dy", y.type());
  const Value loss = sum_to(y * dy, {1});
  std::vector<Value> wrt = {graph.inputs().at("x")};
  for (const std::string& name : trained) wrt.push_back(graph.weights().at(name));
  const std::vector<Value> gradients = differentiate(loss, wrt);
  graph.output("dx", gradients[0]);
  for (size_t i = 0; i < trained.size(); ++i) graph.output(trained[i], gradients[i + 1]);
}

double linear_seconds(const std::string& precision, int64_t tokens, const BenchOptions& options,
                      const Backend& backend, bool fp8_gradients) {
  const auto graph = one_linear(tokens, options.dim, activations_of(precision));
  const LoraSites sites = sites_of(*graph, zimage::default_recipe);
  const std::vector<std::string> trained = trained_by(sites);
  CompileOptions compile;
  compile.lora = {sites};
  compile.extend = [&](Graph& g) { add_gradients(g, trained); };
  if (fp8_gradients && find_format(precision)->quantized()) {
    compile.recipe.emplace();
    compile.recipe->gradients = formats::fp8_e5m2;
  }
  DeviceBench bench(graph, precision, options, backend, std::make_shared<Arena>(),
                    zimage::default_recipe, compile);
  bench.warm_up(random_inputs(bench.program().graph()));
  bench.program().device_seconds(2);
  return median(bench.program().device_seconds(runs_of(options)));
}

}  // namespace

void bench_lora_on_device(const BenchOptions& options, bool fp8_gradients) {
  const Backend backend = device_backend(options);
  std::vector<int64_t> sizes = {4096, 16384, 65536};
  if (options.tokens > 0) sizes = {options.tokens};
  if (!options.json) {
    fmt::print("a linear {0} x {0} with an adapter of rank {1}, forward and backward, on {2}\n",
               options.dim, kRank, backend.info.name);
    fmt::print("{:>8} {:<11} {:>9} {:>9}\n", "tokens", "precision", "ms", "to bf16");
  }
  for (const int64_t tokens : sizes) {
    const double bf16 = linear_seconds("bf16", tokens, options, backend, false);
    for (const std::string& precision : options.precisions) {
      const double seconds =
          precision == "bf16" ? bf16
                              : linear_seconds(precision, tokens, options, backend, fp8_gradients);
      if (options.json) {
        print_json({{"bench", "lora"},
                    {"device", backend.info.name},
                    {"tokens", tokens},
                    {"dim", options.dim},
                    {"rank", kRank},
                    {"precision", precision},
                    {"milliseconds", seconds * 1e3},
                    {"times_bf16", bf16 / seconds}});
      } else {
        fmt::print("{:>8} {:<11} {:>9} {:>9}\n", tokens, precision, three_digits(seconds * 1e3),
                   three_digits(bf16 / seconds));
      }
      std::fflush(stdout);
    }
  }
}

void bench_train_on_device(const BenchOptions& options, bool fp8_gradients) {
  const Backend backend = device_backend(options);
  BenchOptions usual = options;
  if (options.family.empty() && options.tokens == 0) usual.tokens = 4096;
  const Measured measured = find_measured(usual, options.layers);
  const double bandwidth = backend.device->copy_bandwidth();
  if (!options.json) {
    fmt::print("a training step of {}, adapters of rank {} on all linears of its blocks, on {}\n",
               measured.title, kRank, backend.info.name);
    fmt::print("{:<11} {:>9} {:>9} {:>10} {:>10} {:>10} {:>8}\n", "precision", "backward", "ms",
               "optimizer", "weights", "working", "warm-up");
  }
  for (const std::string& precision : options.precisions) {
    const Format format = *find_format(precision);
    const auto graph = measured.build(activations_of(precision));
    const LoraSites sites = sites_of(*graph, measured.recipe);
    const std::vector<std::string> trained = trained_by(sites);
    CompileOptions compile;
    compile.lora = {sites};
    compile.extend = [&](Graph& g) { add_squared_error(g, trained); };
    const bool rounds = fp8_gradients && format.quantized();
    if (rounds) {
      compile.recipe.emplace();
      compile.recipe->gradients = formats::fp8_e5m2;
    }
    DeviceBench bench(graph, precision, options, backend, std::make_shared<Arena>(),
                      measured.recipe, compile);
    Program& program = bench.program();
    const Inputs inputs = random_inputs(program.graph());
    const double warm_up = bench.warm_up(inputs);
    program.device_seconds(2);
    const double seconds = median(program.device_seconds(std::min(runs_of(options), 10)));
    int64_t count = 0;
    for (const std::string& weight : sites.weights) {
      const Shape& shape = graph->weights().at(weight).shape();
      count += kRank * (shape[0] + shape[1]);
    }
    const double update = optimizer_seconds(count, backend, threads_of(options));
    std::vector<NodeCost> costs;
    if (options.profile) costs = profile(program, inputs, 3);
    const char* backward = rounds ? "fp8" : "bf16";
    if (options.json) {
      print_json({{"bench", "train"},
                  {"device", backend.info.name},
                  {"precision", precision},
                  {"backward", backward},
                  {"compile", options.compile},
                  {"recorded", program.recorded()},
                  {"family", options.family},
                  {"layers", measured.layers},
                  {"batch", options.batch},
                  {"tokens", measured.tokens},
                  {"rank", kRank},
                  {"milliseconds", (seconds + update) * 1e3},
                  {"optimizer_milliseconds", update * 1e3},
                  {"warm_up_seconds", warm_up},
                  {"weight_bytes", program.memory().weights},
                  {"working_bytes", program.memory().working()},
                  {"profile", profile_json(costs, bandwidth)}});
    } else {
      fmt::print("{:<11} {:>9} {:>9} {:>10} {:>10} {:>10} {:>8}\n", precision, backward,
                 three_digits((seconds + update) * 1e3), three_digits(update * 1e3),
                 human_bytes(program.memory().weights), human_bytes(program.memory().working()),
                 human_seconds(warm_up));
      print(costs, bandwidth);
    }
    std::fflush(stdout);
  }
}

}  // namespace halftone::cli
