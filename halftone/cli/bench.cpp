// halftone bench: how fast this machine computes what models are made of.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/random.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/cli/cli.h"
#include "halftone/graph/catalogue.h"
#include "halftone/graph/ops.h"
#include "halftone/models/weights.h"
#include "halftone/models/zimage/names.h"
#include "halftone/models/zimage/transformer.h"
#include "halftone/numerics/bf16.h"
#include "halftone/passes/fuse.h"
#include "halftone/passes/lower.h"
#include "halftone/runtime/devices.h"

namespace halftone::cli {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string device = "cpu", compile = "on";
  std::vector<std::string> precisions = {"fp32", "bf16", "fp8", "fp8-tensor", "mxfp8", "nvfp4"};
  int64_t tokens = 1024, dim = 3840;
  int runs = 3, threads = 0;
  bool json = false, profile = false;
};

// Values of about unit variance in [-1.7, 1.7), the same for the same seed.
Tensor random_values(DType dtype, const Shape& shape, uint64_t seed, float gain) {
  Tensor tensor = Tensor::empty(dtype, shape);
  const auto value = [&](int64_t i) {
    const uint32_t word = philox_word({seed, 0}, static_cast<uint64_t>(i));
    return (static_cast<float>(word >> 8) * 0x1p-23f - 1.0f) * 1.7320508f * gain;
  };
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if (dtype == DType::kF32) {
      tensor.mutable_as<float>()[i] = value(i);
    } else {
      tensor.mutable_as<bf16>()[i] = to_bf16(value(i));
    }
  }
  return tensor;
}

// Matrices of unit gain; everything else near 1.
Weights random_weights(const Graph& graph, DType dtype) {
  Weights weights;
  uint64_t seed = 1;
  for (const auto& [name, value] : graph.weights()) {
    const bool matrix = value.rank() == 2;
    const float gain = matrix ? 1 / std::sqrt(static_cast<float>(value.dim(1))) : 1;
    weights.emplace(name, random_values(dtype, value.shape(), seed++, gain));
  }
  return weights;
}

using Inputs = std::map<std::string, Tensor>;
Inputs random_inputs(const Graph& graph) {
  Inputs inputs;
  uint64_t seed = 1000;
  for (const auto& [name, value] : graph.inputs()) {
    inputs.emplace(name, random_values(value.dtype(), value.shape(), seed++, 0.5f));
  }
  return inputs;
}

double seconds_of(Program& program, const Inputs& inputs) {
  const auto start = std::chrono::steady_clock::now();
  program.run(inputs);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double linear_flops(const zimage::TransformerConfig& c, int64_t tokens) {
  const auto d = static_cast<double>(c.dim), h = static_cast<double>(c.hidden());
  return 2 * static_cast<double>(tokens) * (4 * d * d + 3 * d * h);
}
double attention_flops(const zimage::TransformerConfig& c, int64_t tokens) {
  const auto t = static_cast<double>(tokens);
  return 4 * t * t * static_cast<double>(c.dim);
}

// The matrix products of a block and nothing else, in float.
std::shared_ptr<Graph> plain_products(const zimage::TransformerConfig& c, int64_t tokens) {
  auto graph = std::make_shared<Graph>();
  const auto f32 = [](const Shape& shape) { return ValueType{shape, DType::kF32, {}}; };
  const Value x = graph->input("x", f32({1, tokens, c.dim}));
  const Value h = graph->input("h", f32({1, tokens, c.hidden()}));
  const Value head = graph->input("head", f32({tokens, c.head_dim()}));
  const Value scores = graph->input("scores", f32({tokens, tokens}));
  const Value square = graph->weight("square", f32({c.dim, c.dim}));
  const Value up = graph->weight("up", f32({c.hidden(), c.dim}));
  const Value down = graph->weight("down", f32({c.dim, c.hidden()}));
  int count = 0;
  const auto keep = [&](Value y) { graph->output(fmt::format("{}", count++), slice(y, 0, 0, 1)); };
  for (int i = 0; i < 4; ++i) keep(linear(x, square));
  for (int i = 0; i < 2; ++i) keep(linear(x, up));
  keep(linear(h, down));
  for (int64_t i = 0; i < c.heads; ++i) {
    keep(matmul(head, head, false, true));
    keep(matmul(scores, head, false, false));
  }
  return graph;
}

// One block in one precision.
class BlockBench {
 public:
  BlockBench(const zimage::TransformerConfig& config, const std::string& precision,
             const Options& options, Stream stream) {
    const Format format = *find_format(precision);
    const DType activations = precision == "fp32" ? DType::kF32 : DType::kBF16;
    auto graph = zimage::build_block(config, 1, options.tokens, activations);
    Weights weights = random_weights(*graph, activations);
    inputs_ = random_inputs(*graph);
    if (format.quantized()) {
      const QuantizedGraph quantized = quantize_linears(*graph, zimage::default_recipe(format));
      quantize_weights(weights, quantized.report, cpu_kernels(), stream);
      graph = lower(*quantized.graph);
    }
    if (options.compile == "on") graph = fuse(*graph);
    program_ = std::make_unique<Program>(graph, weights, cpu_kernels(), stream);
  }

  double run() { return seconds_of(*program_, inputs_); }
  const MemoryUse& memory() const { return program_->memory(); }

  // Share of the time by operation.
  std::map<std::string, double> profile() {
    std::map<std::string, double> by_op;
    double total = 0;
    program_->set_timer([&](const Node& node, double seconds) {
      by_op[std::string(op_info(node.op).name)] += seconds;
      total += seconds;
    });
    run();
    program_->set_timer({});
    for (auto& [name, seconds] : by_op) seconds /= total;
    return by_op;
  }

 private:
  Inputs inputs_;
  std::unique_ptr<Program> program_;
};

void print_header(const Options& options, const zimage::TransformerConfig& config, double flops,
                  int threads) {
  fmt::print(
      "one Z-Image block: {} tokens, dim {}, {} heads, ffn {}: {:.1f} GFLOP; {} threads, {}\n",
      options.tokens, config.dim, config.heads, config.hidden(), flops * 1e-9, threads,
      options.compile == "on" ? "compiled" : "not compiled");
  fmt::print("{:<11} {:>9} {:>9} {:>13} {:>8} {:>11} {:>11}\n", "precision", "seconds", "GFLOP/s",
             "sgemm GFLOP/s", "ratio", "weights", "working");
}

void run_block(const Options& options) {
  if (options.device != "cpu" && options.device != "auto") {
    throw Error(ErrorCode::kUnsupported, "--device", "this version computes on the CPU");
  }
  zimage::TransformerConfig config;
  if (options.dim % config.head_dim() != 0 || options.dim % 3 != 0) {
    throw Error(ErrorCode::kUsage, "--dim", "{} is no multiple of {}", options.dim,
                3 * config.head_dim());
  }
  const int64_t head = config.head_dim();
  config.dim = options.dim;
  config.heads = options.dim / head;
  const Stream stream{options.threads > 0 ? options.threads : hardware_threads()};
  const double flops =
      linear_flops(config, options.tokens) + attention_flops(config, options.tokens);
  const auto peer_graph = plain_products(config, options.tokens);
  Program peer(peer_graph, random_weights(*peer_graph, DType::kF32), cpu_kernels(), stream);
  const Inputs peer_inputs = random_inputs(*peer_graph);
  if (!options.json) print_header(options, config, flops, stream.threads);

  for (const std::string& precision : options.precisions) {
    BlockBench bench(config, precision, options, stream);
    seconds_of(peer, peer_inputs);  // both warm
    bench.run();
    // In turn, so that what else the machine does hits both alike.
    std::vector<double> block_seconds, peer_seconds, ratios;
    for (int i = 0; i < options.runs; ++i) {
      peer_seconds.push_back(seconds_of(peer, peer_inputs));
      block_seconds.push_back(bench.run());
      ratios.push_back(peer_seconds.back() / block_seconds.back());
    }
    const double block = median(block_seconds), plain = median(peer_seconds);
    const std::map<std::string, double> profile =
        options.profile ? bench.profile() : std::map<std::string, double>{};
    if (options.json) {
      print_json({{"bench", "block"},
                  {"device", "cpu"},
                  {"threads", stream.threads},
                  {"precision", precision},
                  {"compile", options.compile},
                  {"tokens", options.tokens},
                  {"dim", config.dim},
                  {"seconds", block},
                  {"gflops", flops * 1e-9 / block},
                  {"sgemm_gflops", flops * 1e-9 / plain},
                  {"ratio", median(ratios)},
                  {"weight_bytes", bench.memory().weights},
                  {"working_bytes", bench.memory().working()},
                  {"profile", profile}});
      continue;
    }
    fmt::print("{:<11} {:>9.3f} {:>9.1f} {:>13.1f} {:>8.2f} {:>11} {:>11}\n", precision, block,
               flops * 1e-9 / block, flops * 1e-9 / plain, median(ratios),
               human_bytes(bench.memory().weights), human_bytes(bench.memory().working()));
    for (const auto& [name, share] : profile)
      fmt::print("    {:<12} {:5.1f}%\n", name, share * 100);
    std::fflush(stdout);
  }
}

}  // namespace

void add_bench(CLI::App& app, const Context&) {
  CLI::App* command = app.add_subcommand("bench", "Measure this machine");
  command->require_subcommand(1);
  CLI::App* block = command->add_subcommand(
      "block", "One transformer block of Z-Image at full width, per precision");
  block->footer(
      "The ratio is to oneDNN's plain float matrix product on the same shapes, timed in turn with "
      "the\nblock; medians of --runs. Weights and inputs are random.");
  auto o = std::make_shared<Options>();
  block->add_option("--precision", o->precisions, "Precisions to measure, separated by commas")
      ->delimiter(',')
      ->type_name("P,...")
      ->check(CLI::IsMember({"fp32", "bf16", "fp8", "fp8-tensor", "mxfp8", "nvfp4"}));
  block->add_option("--device", o->device, "cpu")->capture_default_str()->type_name("D");
  block->add_option("--compile", o->compile, "on or off")
      ->capture_default_str()
      ->type_name("C")
      ->check(CLI::IsMember({"on", "off"}));
  block->add_option("--tokens", o->tokens, "Tokens")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  block->add_option("--dim", o->dim, "Width of the model")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(384, 16384));
  block->add_option("--runs", o->runs, "Timed runs; the median counts")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  block->add_option("--threads", o->threads, "CPU threads (default: all)")
      ->type_name("N")
      ->check(CLI::Range(1, 256));
  block->add_flag("--profile", o->profile, "Also show which operations take the time");
  block->add_flag("--json", o->json, "Print one JSON object per line");
  block->callback([o] { run_block(*o); });
}

}  // namespace halftone::cli
