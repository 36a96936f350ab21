#include "halftone/cli/bench_graph.h"

#include <fmt/format.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/cli/cli.h"
#include "halftone/graph/catalogue.h"
#include "halftone/models/weights.h"
#include "halftone/runtime/block_plan.h"

namespace halftone::cli {
namespace {

using nlohmann::ordered_json;

// Operations on rows of a block that no fused node contains.
std::vector<std::string> unfused_in_blocks(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Node& node : graph.nodes()) {
    switch (node.op) {
      case Op::kAdd:
      case Op::kMul:
      case Op::kAffine:
      case Op::kUnary:
      case Op::kSiluMul:
      case Op::kRmsNorm:
      case Op::kLayerNorm:
      case Op::kRope:
      case Op::kCast:
        if (node.region >= 0) {
          ++counts[fmt::format("{} in {}", op_info(node.op).name,
                               graph.regions()[node.region].kind)];
        }
        break;
      default:
        break;
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, count] : counts) names.push_back(fmt::format("{} x {}", count, name));
  return names;
}

void quantize_once_per_shape(Weights& weights, const QuantizeReport& report, int threads) {
  std::map<std::string, Weight> made;
  for (const auto& linear : report.converted) {
    Weight& done = made[linear.shape.str()];
    const auto* tensor = std::get_if<Tensor>(&done);
    if (tensor != nullptr && !tensor->defined()) {
      Weights one = {{linear.weight, weights.at(linear.weight)}};
      QuantizeReport alone;
      alone.converted = {linear};
      quantize_weights(one, alone, cpu_kernels(), {threads});
      done = one.at(linear.weight);
    }
    weights[linear.weight] = done;
  }
}

double bytes_of(const ValueType& type) {
  if (!type.quantized) return static_cast<double>(type.shape.checked_bytes(type.dtype).value());
  const int64_t cols = type.shape[-1], rows = type.shape.numel() / cols;
  return static_cast<double>(quantized_layout(*type.quantized, rows, cols, type.items()).bytes);
}

double bytes_of(const Node& node, const Graph& graph) {
  double bytes = 0;
  for (const int id : node.outputs) bytes += bytes_of(graph.values()[id].type);
  if (node.op != Op::kFusedRows) {
    for (const int id : node.inputs) bytes += bytes_of(graph.values()[id].type);
    return bytes;
  }
  const auto& how = std::get<FusedRowsAttributes>(node.attributes);
  for (size_t i = 0; i < how.inputs.size(); ++i) {
    if (how.inputs[i].source != RowSource::kPerRow) continue;
    const int64_t size = bits_of(graph.values()[node.inputs[i]].type.dtype) / 8;
    bytes += static_cast<double>(how.rows * how.inputs[i].length * size);
  }
  return bytes;
}

std::string describe(const Node& node, const Graph& graph) {
  std::string name(op_info(node.op).name);
  if (node.op == Op::kFusedRows) {
    const auto& how = std::get<FusedRowsAttributes>(node.attributes);
    std::string steps;
    for (const RowStep& step : how.steps) {
      steps += (steps.empty() ? "" : "+") + std::string(name_of(step.function));
    }
    name = fmt::format("fused {} [{} x {}]", steps, how.rows, how.length());
  } else if (node.op == Op::kLinear) {
    const Shape& w = graph.values()[node.inputs[1]].type.shape;
    name = fmt::format("linear [{} x {}]", w[0], w[1]);
  } else if (node.op == Op::kConv2d) {
    name = fmt::format("conv2d {} to {}", graph.values()[node.inputs[1]].type.shape,
                       graph.values()[node.outputs[0]].type.shape);
  }
  return name;
}

}  // namespace

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Backend device_backend(const BenchOptions& options) {
  Backend backend = choose_backend(options.device == "auto" ? "cuda" : options.device);
  if (backend.device == nullptr) {
    throw Error(ErrorCode::kUnsupported, "--device", "{}",
                backend.fallback.empty() ? "this benchmark needs a GPU" : backend.fallback);
  }
  return backend;
}

int threads_of(const BenchOptions& options) { return start_threads(options.threads); }
int runs_of(const BenchOptions& options) { return options.runs > 0 ? options.runs : 20; }
DType activations_of(const std::string& precision) {
  return precision == "fp32" ? DType::kF32 : DType::kBF16;
}

DeviceBench::DeviceBench(const std::shared_ptr<Graph>& graph, const std::string& precision,
                         const BenchOptions& options, const Backend& backend,
                         std::shared_ptr<Arena> arena, const Recipe& recipe,
                         CompileOptions compile) {
  const Format format = *find_format(precision);
  Weights weights = random_weights(*graph, activations_of(precision));
  if (format.quantized()) {
    const auto gradients = compile.recipe ? compile.recipe->gradients : std::nullopt;
    compile.recipe = recipe(format);
    compile.recipe->gradients = gradients;
  } else {
    compile.recipe.reset();
  }
  compile.optimize = options.compile == "on";
  const std::vector<WeightBlock> blocks = weight_blocks(*graph);
  const auto streamed =
      halftone::stream_blocks(placed_bytes(weights, blocks), options.streamed).chosen(blocks);
  if (!streamed.empty()) compile.can_stack = stack_within(streamed);
  const Stream stream = backend.stream(threads_of(options));
  const CompiledGraph compiled = halftone::compile(*graph, compile, *backend.kernels, stream);
  quantize_once_per_shape(weights, compiled.report, threads_of(options));
  unfused_ = unfused_in_blocks(*compiled.graph);
  for (const LoraSites& sites : compile.lora) {
    for (const std::string& name : sites.weights) {
      const Shape& shape = graph->weights().at(name).shape();
      weights[lora_down_name(name)] = random_values(DType::kF32, {sites.rank, shape[1]}, 9, 0.02f);
      weights[lora_up_name(name)] = random_values(DType::kF32, {shape[0], sites.rank}, 10, 0.02f);
    }
  }
  weights = to_device(weights, weight_stacks(*compiled.graph), *backend.device, streamed);
  const ProgramOptions how{backend.kernels, stream, compile.optimize};
  const auto start = Clock::now();
  program_ = std::make_unique<Program>(compiled.graph, weights, how, std::move(arena));
  plan_seconds_ = since(start);
}

double DeviceBench::warm_up(const Inputs& inputs) {
  const auto start = Clock::now();
  program_->run(inputs);
  program_->run(inputs);
  return plan_seconds_ + since(start);
}

std::vector<NodeCost> profile(Program& program, const Inputs& inputs, int runs) {
  std::map<const Node*, std::vector<double>> times;
  program.set_timer([&](const Node& node, double seconds) { times[&node].push_back(seconds); });
  for (int i = 0; i < runs; ++i) program.run(inputs);
  program.set_timer({});
  std::map<std::string, NodeCost> by_name;
  for (const auto& [node, seconds] : times) {
    const std::string name = describe(*node, program.graph());
    NodeCost& cost = by_name[name];
    cost.name = name;
    cost.seconds += median(seconds);
    cost.bytes += bytes_of(*node, program.graph());
    ++cost.count;
  }
  std::vector<NodeCost> costs;
  for (const auto& [name, cost] : by_name) costs.push_back(cost);
  std::sort(costs.begin(), costs.end(),
            [](const NodeCost& a, const NodeCost& b) { return a.seconds > b.seconds; });
  return costs;
}

ordered_json profile_json(const std::vector<NodeCost>& costs, double bandwidth) {
  ordered_json out = ordered_json::array();
  for (const NodeCost& cost : costs) {
    out.push_back({{"node", cost.name},
                   {"count", cost.count},
                   {"milliseconds", cost.seconds * 1e3},
                   {"bandwidth_share", cost.bytes / cost.seconds / bandwidth}});
  }
  return out;
}

void print(const std::vector<NodeCost>& costs, double bandwidth) {
  double total = 0;
  for (const NodeCost& cost : costs) total += cost.seconds;
  for (const NodeCost& cost : costs) {
    fmt::print("    {:5.1f}%  {:>8} ms  {:4} x  {:>6} of copy bandwidth  {}\n",
               cost.seconds / total * 100, three_digits(cost.seconds * 1e3), cost.count,
               three_digits(cost.bytes / cost.seconds / bandwidth), cost.name);
  }
}

}  // namespace halftone::cli
