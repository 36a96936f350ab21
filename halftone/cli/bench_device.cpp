// Benchmarks of generating on a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/cli/bench_graph.h"
#include "halftone/cli/cli.h"
#include "halftone/graph/ops.h"
#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/families.h"
#include "halftone/models/qwen3/names.h"
#include "halftone/models/qwen3/text_encoder.h"
#include "halftone/models/zimage/transformer.h"

namespace halftone::cli {
namespace {

using nlohmann::ordered_json;

// What a large square product reaches, in FLOP/s: the ceiling to hold others against.
double gemm_peak(const std::string& precision, const BenchOptions& options,
                 const Backend& backend) {
  constexpr int64_t kSide = 8192;
  auto graph = std::make_shared<Graph>();
  const DType dtype = activations_of(precision);
  const Value x = graph->input("x", {{1, kSide, kSide}, dtype, {}});
  const Value w = graph->weight("layers.0.feed_forward.w1.weight", {{kSide, kSide}, dtype, {}});
  graph->output("y", slice(linear(x, w), 1, 0, 1));
  BenchOptions plain = options;
  plain.compile = "on";
  DeviceBench bench(graph, precision, plain, backend);
  const Inputs inputs = random_inputs(*graph);
  bench.warm_up(inputs);
  for (const NodeCost& cost : profile(bench.program(), inputs, 10)) {
    if (cost.name.starts_with("linear")) {
      return 2.0 * kSide * kSide * kSide / cost.seconds;
    }
  }
  return 0;
}

// What is measured as "model": blocks of Z-Image, or a whole denoiser of any family.
struct Measured {
  std::string title;
  int64_t layers = 0, tokens = 0;
  double flops = 0;
  std::function<std::shared_ptr<Graph>(DType activations)> build;
  DeviceBench::Recipe recipe;
};

// Of products, convolutions and attention; nothing else counts.
double flops_of(const Graph& graph) {
  double flops = 0;
  for (const Node& node : graph.nodes()) {
    const auto shape = [&](size_t i) -> const Shape& {
      return graph.values()[node.inputs[i]].type.shape;
    };
    if (node.op == Op::kLinear) {
      flops += 2.0 * static_cast<double>(shape(0).numel()) * static_cast<double>(shape(1)[0]);
    } else if (node.op == Op::kConv2d) {
      const Shape& result = graph.values()[node.outputs[0]].type.shape;
      const int64_t each = shape(1).numel() / shape(1)[0];
      flops += 2.0 * static_cast<double>(result.numel()) * static_cast<double>(each);
    } else if (node.op == Op::kAttention) {
      flops += 4.0 * static_cast<double>(shape(0).numel()) * static_cast<double>(shape(1)[1]);
    }
  }
  return flops;
}

Measured zimage_blocks(const BenchOptions& options, int64_t layers) {
  const zimage::TransformerConfig config = bench_config(options);
  const int64_t tokens = options.tokens > 0 ? options.tokens : 4224;
  Measured m;
  m.title = fmt::format("{} Z-Image block{}: batch {}, {} tokens, dim {}, {} heads, ffn {}", layers,
                        layers == 1 ? "" : "s", options.batch, tokens, config.dim, config.heads,
                        config.hidden());
  m.layers = layers;
  m.tokens = tokens;
  m.build = [=, batch = options.batch](DType activations) {
    return zimage::build_blocks(config, layers, batch, tokens, activations);
  };
  m.recipe = zimage::default_recipe;
  return m;
}

// A square picture of so many tokens, besides those of the text.
Measured whole_denoiser(const BenchOptions& options, const Family& family,
                        const Family::Size& size) {
  const std::shared_ptr<const Denoiser> denoiser = size.denoiser();
  const int64_t tokens = options.tokens > 0 ? options.tokens : 4096;
  const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(tokens)));
  if (side * side != tokens) {
    throw Error(ErrorCode::kUsage, "--tokens", "{} are no square picture", tokens);
  }
  const std::vector<int64_t> texts(static_cast<size_t>(options.batch), size.text_tokens);
  const int64_t latents = side * denoiser->patch();
  const DenoiserShape shape = denoiser->shape({denoiser->channels(), latents, latents}, texts);
  Measured m;
  m.title = fmt::format("{} {}: batch {}, {} + {} tokens", family.title, size.name, options.batch,
                        tokens, size.text_tokens);
  m.tokens = tokens + size.text_tokens;
  m.build = [=](DType activations) { return denoiser->build(shape, {activations, false}); };
  m.recipe = [=](const Format& format) { return denoiser->recipe(format); };
  m.layers = static_cast<int64_t>(m.build(DType::kBF16)->regions().size());
  return m;
}

// "flux.2-klein", or "flux.2-klein:9b"; empty: blocks of Z-Image.
Measured find_measured(const BenchOptions& options, int64_t layers) {
  if (options.family.empty()) return zimage_blocks(options, layers);
  for (const Family& family : families()) {
    for (const Family::Size& size : family.sizes) {
      const std::string name = fmt::format("{}:{}", family.name, size.name);
      if (options.family == name || options.family == family.name) {
        return whole_denoiser(options, family, size);
      }
    }
  }
  throw Error(ErrorCode::kUsage, "--family", "'{}' is none of {}", printable(options.family),
              measured_families());
}

// One precision, with so many blocks streamed.
struct ModelRow {
  double seconds = 0, warm_up = 0;
  bool recorded = false;
  MemoryUse memory;
  int blocks = 0, of = 0;  // that are streamed
  int64_t most_held = 0;   // bytes of the device
  std::vector<std::string> unfused;
  std::vector<NodeCost> costs;
};
// What rows are held against.
struct Ceilings {
  double gemm = 0, bandwidth = 0;
  double resident = 0;  // seconds; 0: not measured
};

ModelRow measure_model(const Measured& m, const std::string& precision, const BenchOptions& options,
                       const Backend& backend) {
  ModelRow row;
  backend.device->synchronize();
  backend.device->forget_most_held();
  const int64_t before = backend.device->memory().held;
  const auto graph = m.build(activations_of(precision));
  row.of = static_cast<int>(weight_blocks(*graph).size());
  row.blocks = std::min(options.streamed, row.of);
  DeviceBench bench(graph, precision, options, backend, std::make_shared<Arena>(), m.recipe);
  Program& program = bench.program();
  const Inputs inputs = random_inputs(program.graph());
  row.warm_up = bench.warm_up(inputs);
  row.most_held = backend.device->memory().most_held - before;
  program.device_seconds(3);
  row.seconds = median(program.device_seconds(runs_of(options)));
  row.recorded = program.recorded();
  row.memory = program.memory();
  row.unfused = bench.unfused();
  if (options.profile) row.costs = profile(program, inputs, 7);
  return row;
}

ordered_json model_json(const Measured& m, const ModelRow& row, const std::string& precision,
                        const BenchOptions& options, const DeviceInfo& device,
                        const Ceilings& ceilings) {
  ordered_json json = {{"bench", m.layers == 1 ? "block" : "model"},
                       {"device", device.name},
                       {"precision", precision},
                       {"how", to_string(format_support(device, *find_format(precision)).support)},
                       {"compile", options.compile},
                       {"recorded", row.recorded},
                       {"layers", m.layers},
                       {"batch", options.batch},
                       {"tokens", m.tokens},
                       {"family", options.family.empty() ? "z-image" : options.family},
                       {"milliseconds", row.seconds * 1e3},
                       {"tflops", m.flops * 1e-12 / row.seconds},
                       {"gemm_peak_tflops", ceilings.gemm * 1e-12},
                       {"share_of_peak", m.flops / row.seconds / ceilings.gemm},
                       {"warm_up_seconds", row.warm_up},
                       {"weight_bytes", row.memory.weights},
                       {"working_bytes", row.memory.working()},
                       {"most_held_bytes", row.most_held},
                       {"stream_blocks", row.blocks},
                       {"blocks", row.of},
                       {"streamed_bytes", row.memory.streamed},
                       {"copy_bandwidth", ceilings.bandwidth},
                       {"unfused", row.unfused},
                       {"profile", profile_json(row.costs, ceilings.bandwidth)}};
  if (ceilings.resident > 0) json["resident_speed"] = ceilings.resident / row.seconds;
  return json;
}

void print_model_row(const Measured& m, const ModelRow& row, const std::string& precision,
                     const DeviceInfo& device, const Ceilings& ceilings) {
  const FormatSupport support = format_support(device, *find_format(precision));
  fmt::print("{:<11} {:>9} {:>9} {:>10} {:>7} {:>10} {:>10} {:>8} {}\n", precision,
             three_digits(row.seconds * 1e3), three_digits(m.flops * 1e-12 / row.seconds),
             three_digits(ceilings.gemm * 1e-12),
             three_digits(m.flops / row.seconds / ceilings.gemm), human_bytes(row.memory.weights),
             human_bytes(row.memory.working()), human_seconds(row.warm_up),
             support.support == Support::kEmulated ? support.why : "");
  if (row.blocks > 0) {
    fmt::print("    {} of {} blocks streamed: {} a run, at {} GB/s or more; {} held at most{}\n",
               row.blocks, row.of, human_bytes(row.memory.streamed),
               three_digits(static_cast<double>(row.memory.streamed) * 1e-9 / row.seconds),
               human_bytes(row.most_held),
               ceilings.resident > 0 ? fmt::format("; {} of the speed without",
                                                   three_digits(ceilings.resident / row.seconds))
                                     : "");
  }
  for (const std::string& name : row.unfused) fmt::print("    not fused: {}\n", name);
  print(row.costs, ceilings.bandwidth);
}

}  // namespace

std::string measured_families() {
  std::string known;
  for (const Family& family : families()) {
    for (const Family::Size& size : family.sizes) {
      known += fmt::format("{}{}:{}", known.empty() ? "" : ", ", family.name, size.name);
    }
  }
  return known;
}

void bench_blocks_on_device(const BenchOptions& options, int64_t layers) {
  Measured m = find_measured(options, layers);
  m.flops = flops_of(*m.build(DType::kBF16));
  const Backend backend = device_backend(options);
  const double bandwidth = backend.device->copy_bandwidth();
  if (!options.json) {
    fmt::print("{}: {} TFLOP\n", m.title, three_digits(m.flops * 1e-12));
    fmt::print("{}, copies {} TB/s, {}\n", backend.info.name, three_digits(bandwidth * 1e-12),
               options.compile == "on" ? "compiled" : "not compiled");
    fmt::print("{:<11} {:>9} {:>9} {:>10} {:>7} {:>10} {:>10} {:>8} {}\n", "precision", "ms",
               "TFLOP/s", "GEMM peak", "share", "weights", "working", "warm-up", "");
  }
  for (const std::string& precision : options.precisions) {
    const double peak = gemm_peak(precision, options, backend);
    double resident = 0;  // seconds, where all blocks are on the device
    for (const int streamed : options.stream_blocks) {
      BenchOptions one = options;
      one.streamed = streamed;
      const ModelRow row = measure_model(m, precision, one, backend);
      if (row.blocks == 0) resident = row.seconds;
      if (options.json) {
        print_json(model_json(m, row, precision, one, backend.info, {peak, bandwidth, resident}));
      } else {
        print_model_row(m, row, precision, backend.info, {peak, bandwidth, resident});
      }
      std::fflush(stdout);
    }
  }
}

void bench_linear_on_device(const BenchOptions& options) {
  const Backend backend = device_backend(options);
  const zimage::TransformerConfig config = bench_config(options);
  const int64_t tokens = options.tokens > 0 ? options.tokens : 4224;
  const int64_t rows = tokens * options.batch;
  struct Case {
    const char* name;
    int64_t out, in;
  };
  const Case cases[] = {{"q, k and v", 3 * config.dim, config.dim},
                        {"attention out", config.dim, config.dim},
                        {"w1 and w3", 2 * config.hidden(), config.dim},
                        {"w2", config.dim, config.hidden()}};
  if (!options.json) {
    fmt::print("linears of a Z-Image block, {} rows, on {}\n{:<14} {:>7} {:>7}", rows,
               backend.info.name, "", "out", "in");
    for (const std::string& precision : options.precisions) fmt::print(" {:>11}", precision);
    fmt::print("   TFLOP/s\n");
  }
  for (const Case& c : cases) {
    if (!options.json) fmt::print("{:<14} {:>7} {:>7}", c.name, c.out, c.in);
    for (const std::string& precision : options.precisions) {
      auto graph = std::make_shared<Graph>();
      const DType dtype = activations_of(precision);
      const Value x = graph->input("x", {{options.batch, tokens, c.in}, dtype, {}});
      const Value w = graph->weight("layers.0.feed_forward.w1.weight", {{c.out, c.in}, dtype, {}});
      graph->output("y", slice(linear(x, w), 1, 0, 1));
      DeviceBench bench(graph, precision, options, backend);
      const Inputs inputs = random_inputs(*graph);
      bench.warm_up(inputs);
      double gemm = 0, quantize = 0;
      for (const NodeCost& cost : profile(bench.program(), inputs, runs_of(options))) {
        if (cost.name.starts_with("linear")) gemm = cost.seconds;
        if (cost.name.starts_with("quantize")) quantize = cost.seconds;
      }
      const double flops =
          2.0 * static_cast<double>(rows) * static_cast<double>(c.out) * static_cast<double>(c.in);
      if (options.json) {
        print_json({{"bench", "linear"},
                    {"device", backend.info.name},
                    {"linear", c.name},
                    {"precision", precision},
                    {"rows", rows},
                    {"out", c.out},
                    {"in", c.in},
                    {"milliseconds", gemm * 1e3},
                    {"quantize_milliseconds", quantize * 1e3},
                    {"tflops", flops * 1e-12 / gemm}});
      } else {
        fmt::print(" {:>11}", three_digits(flops * 1e-12 / gemm));
      }
      std::fflush(stdout);
    }
    if (!options.json) fmt::print("\n");
  }
}

void bench_pipeline_on_device(const BenchOptions& options) {
  const Backend backend = device_backend(options);
  constexpr int kSteps = 8;
  constexpr int64_t kLatent = 128, kCaption = 128;  // 1024 x 1024 pixels
  const zimage::TransformerConfig config;
  const qwen3::Config text_config;
  const autoencoder_kl::Config vae_config;
  if (!options.json) {
    fmt::print("Z-Image at 1024x1024, {} steps, prompt of {} tokens, random weights, on {}\n",
               kSteps, kCaption, backend.info.name);
    fmt::print("{:<11} {:>10} {:>12} {:>12} {:>10} {:>10} {:>9} {:>10}\n", "precision", "text ms",
               "a step ms", "steps ms", "VAE ms", "wall ms", "warm-up", "weights");
  }
  for (const std::string& precision : options.precisions) {
    const DType dtype = activations_of(precision);
    const std::string wide = dtype == DType::kF32 ? "fp32" : "bf16";
    const auto arena = std::make_shared<Arena>();
    const zimage::TransformerShape shape{1, kLatent, kLatent, kCaption, false};
    const std::string& asked = options.text_precision;
    const std::string of_text = asked.empty() ? wide : asked;
    DeviceBench text(
        qwen3::build_text_encoder(text_config, 1, kCaption, {activations_of(of_text), false}),
        of_text, options, backend, arena, qwen3::layers_recipe);
    DeviceBench denoiser(zimage::build_transformer(config, shape, {dtype, false}), precision,
                         options, backend, arena);
    DeviceBench vae(autoencoder_kl::build_decoder(vae_config, 1, kLatent, kLatent, {dtype}), wide,
                    options, backend, arena);
    const std::vector<int32_t> ids(kCaption, 7);
    const Inputs prompt = qwen3::text_inputs(text_config, kCaption, {&ids, 1});
    const Tensor latents =
        random_values(DType::kF32, {1, config.in_channels, kLatent, kLatent}, 5, 1);
    const Tensor caption = random_values(DType::kF32, {kCaption, config.cap_feat_dim}, 6, 1);
    const float time = 0.5f;
    const Inputs step =
        zimage::transformer_inputs(config, shape, latents, {&time, 1}, {&caption, 1});
    const Inputs decode = {{"latents", latents}};
    int64_t most = 0;
    for (DeviceBench* part : {&text, &denoiser, &vae}) {
      most = std::max(most, part->program().memory().arena + part->program().memory().workspace);
    }
    arena->expect(most);
    const double warm_up = text.warm_up(prompt) + denoiser.warm_up(step) + vae.warm_up(decode);
    // As a user waits for it, copies and all.
    const auto start = Clock::now();
    text.program().run(prompt);
    for (int i = 0; i < kSteps; ++i) denoiser.program().run(step);
    vae.program().run(decode);
    const double wall = since(start);
    const int runs = std::min(runs_of(options), 10);
    const double text_seconds = median(text.program().device_seconds(runs));
    const double step_seconds = median(denoiser.program().device_seconds(runs));
    const double vae_seconds = median(vae.program().device_seconds(runs));
    const int64_t weights = text.program().memory().weights + vae.program().memory().weights +
                            denoiser.program().memory().weights;
    if (options.json) {
      print_json({{"bench", "pipeline"},
                  {"device", backend.info.name},
                  {"precision", precision},
                  {"text_precision", of_text},
                  {"text_weight_bytes", text.program().memory().weights},
                  {"steps", kSteps},
                  {"text_milliseconds", text_seconds * 1e3},
                  {"step_milliseconds", step_seconds * 1e3},
                  {"vae_milliseconds", vae_seconds * 1e3},
                  {"wall_milliseconds", wall * 1e3},
                  {"warm_up_seconds", warm_up},
                  {"weight_bytes", weights},
                  {"working_bytes", most}});
    } else {
      fmt::print("{:<11} {:>10} {:>12} {:>12} {:>10} {:>10} {:>9} {:>10}\n", precision,
                 three_digits(text_seconds * 1e3), three_digits(step_seconds * 1e3),
                 three_digits(step_seconds * kSteps * 1e3), three_digits(vae_seconds * 1e3),
                 three_digits(wall * 1e3), human_seconds(warm_up), human_bytes(weights));
    }
    if (options.profile && !options.json) {
      const double bandwidth = backend.device->copy_bandwidth();
      fmt::print("  text encoder\n");
      print(profile(text.program(), prompt, 5), bandwidth);
      fmt::print("  VAE decoder\n");
      print(profile(vae.program(), decode, 5), bandwidth);
    }
    std::fflush(stdout);
  }
}

}  // namespace halftone::cli
