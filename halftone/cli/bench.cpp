// halftone bench: how fast this machine computes what models are made of.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/cli/bench_support.h"
#include "halftone/cli/cli.h"
#include "halftone/cli/flags.h"
#include "halftone/graph/catalogue.h"
#include "halftone/graph/ops.h"
#include "halftone/models/weights.h"
#include "halftone/models/zimage/names.h"
#include "halftone/models/zimage/transformer.h"
#include "halftone/passes/compile.h"

namespace halftone::cli {
namespace {

double seconds_of(Program& program, const Inputs& inputs) {
  const auto start = std::chrono::steady_clock::now();
  program.run(inputs);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
             const BenchOptions& options, Stream stream) {
    const Format format = *find_format(precision);
    const DType activations = precision == "fp32" ? DType::kF32 : DType::kBF16;
    auto graph = zimage::build_blocks(config, 1, 1, options.tokens, activations);
    Weights weights = random_weights(*graph, activations);
    inputs_ = random_inputs(*graph);
    CompileOptions how;
    if (format.quantized()) how.recipe = zimage::default_recipe(format);
    how.optimize = options.compile == "on";
    const CompiledGraph compiled = compile(*graph, how, cpu_kernels(), stream);
    quantize_weights(weights, compiled.report, cpu_kernels(), stream);
    program_ = std::make_unique<Program>(compiled.graph, weights, cpu_kernels(), stream);
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

void print_header(const BenchOptions& options, const zimage::TransformerConfig& config,
                  double flops, int threads) {
  fmt::print("one Z-Image block: {} tokens, dim {}, {} heads, ffn {}: {} GFLOP; {} threads, {}\n",
             options.tokens, config.dim, config.heads, config.hidden(), three_digits(flops * 1e-9),
             threads, options.compile == "on" ? "compiled" : "not compiled");
  fmt::print("{:<11} {:>9} {:>9} {:>13} {:>8} {:>11} {:>11}\n", "precision", "seconds", "GFLOP/s",
             "sgemm GFLOP/s", "ratio", "weights", "working");
}

bool is_cpu(const BenchOptions& options) {
  return options.device == "cpu" || options.device == "auto";
}

void run_block(BenchOptions options) {
  if (!is_cpu(options)) return bench_blocks_on_device(options, 1);
  if (options.batch != 1) throw Error(ErrorCode::kUsage, "--batch", "is for GPUs");
  if (options.tokens == 0) options.tokens = 1024;
  if (options.runs == 0) options.runs = 3;
  const zimage::TransformerConfig config = bench_config(options);
  const Stream stream{start_threads(options.threads)};
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
    fmt::print("{:<11} {:>9} {:>9} {:>13} {:>8} {:>11} {:>11}\n", precision, three_digits(block),
               three_digits(flops * 1e-9 / block), three_digits(flops * 1e-9 / plain),
               three_digits(median(ratios)), human_bytes(bench.memory().weights),
               human_bytes(bench.memory().working()));
    for (const auto& [name, share] : profile)
      fmt::print("    {:<12} {:5.1f}%\n", name, share * 100);
    std::fflush(stdout);
  }
}

void add_bench_options(CLI::App& command, BenchOptions& o) {
  command.add_option("--precision", o.precisions, "Precisions to measure, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("P,...")
      ->check(CLI::IsMember({"fp32", "bf16", "fp8", "fp8-tensor", "mxfp8", "nvfp4"}));
  command.add_option("--device", o.device, "cpu or cuda[:N]")
      ->capture_default_str()
      ->type_name("D");
  command.add_option("--compile", o.compile, "on or off")
      ->capture_default_str()
      ->type_name("C")
      ->check(CLI::IsMember({"on", "off"}));
  command.add_option("--tokens", o.tokens, "Tokens (default: 1024 on the CPU, 4224 on a GPU)")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  command.add_option("--batch", o.batch, "Pictures at a time, on a GPU")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 64));
  command.add_option("--dim", o.dim, "Width of the model")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(384, 16384));
  command.add_option("--runs", o.runs, "Timed runs; the median counts (default: 3, on a GPU 20)")
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  command.add_option("--threads", o.threads, "CPU threads (default: all)")
      ->type_name("N")
      ->check(CLI::Range(1, 256));
  command.add_flag("--profile", o.profile, "Also show which operations take the time");
  command.add_flag("--json", o.json, "Print one JSON object per line");
}

}  // namespace

void add_bench(CLI::App& app, const Context&) {
  CLI::App* command = app.add_subcommand("bench", "Measure this machine");
  command->require_subcommand(1);

  CLI::App* block = command->add_subcommand(
      "block", "One transformer block of Z-Image at full width, per precision");
  block->footer(
      "On the CPU the ratio is to oneDNN's plain float matrix product on the same shapes, timed in "
      "turn with the\nblock; medians of --runs. Weights and inputs are random.");
  auto o = std::make_shared<BenchOptions>();
  add_bench_options(*block, *o);
  block->callback([o] { run_block(*o); });

  CLI::App* model = command->add_subcommand(
      "model", "All blocks of Z-Image at full size with random weights, per precision (GPU)");
  auto m = std::make_shared<BenchOptions>();
  m->device = "cuda";
  add_bench_options(*model, *m);
  model->add_option("--layers", m->layers, "Blocks")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 200));
  model
      ->add_option(
          "--family", m->family,
          "The whole denoiser of a family instead, at 1024x1024 or --tokens of a picture: " +
              measured_families())
      ->type_name("F");
  model
      ->add_option("--stream-blocks", m->stream_blocks,
                   "So many blocks stay in the CPU's memory and are copied in every run; several, "
                   "separated by commas, are measured one after the other, 0 being none")
      ->capture_default_str()
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N,...")
      ->check(CLI::Range(0, 1000));
  model->callback([m] { bench_blocks_on_device(*m, m->layers); });

  CLI::App* compiling = command->add_subcommand(
      "compile", "Building, compiling and planning a whole denoiser, before anything runs");
  auto c = std::make_shared<BenchOptions>();
  add_bench_options(*compiling, *c);
  compiling->add_option("--layers", c->layers, "Blocks")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  compiling
      ->add_option("--family", c->family,
                   "Of a family at its full size instead of Z-Image: " + measured_families())
      ->type_name("F");
  for (const char* other : {"--device", "--compile", "--tokens", "--threads", "--profile"}) {
    compiling->remove_option(compiling->get_option(other));
  }
  compiling->callback([c] { bench_compile(*c); });

  CLI::App* folder = command->add_subcommand(
      "folder",
      "Write a model folder with random weights in bf16, for trying commands on its size");
  folder->footer(
      "A Z-Image, 11.5 GiB at full size; its tokenizer, scheduler and VAE are those of the model "
      "that "
      "comes with the\nprogram, and the text encoder is as small as its own. With --like, a model "
      "of any "
      "family: the small files of\nits folder say all that is needed, and every part gets its full "
      "size.");
  auto f = std::make_shared<BenchOptions>();
  auto out = std::make_shared<std::string>(), like = std::make_shared<std::string>();
  folder->add_option("-o,--output", *out, "The folder to write")->required()->type_name("DIR");
  CLI::Option* described =
      folder
          ->add_option(
              "--like", *like,
              "The model that this folder's configurations and tokenizers describe; of its "
              "weights only a VAE's are taken")
          ->type_name("DIR")
          ->check(CLI::ExistingDirectory);
  folder->add_option("--layers", f->layers, "Blocks")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  folder->add_option("--dim", f->dim, "Width of the model")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(384, 16384));
  for (const char* own : {"--layers", "--dim"}) folder->get_option(own)->excludes(described);
  folder->callback(
      [f, out, like] { like->empty() ? bench_folder(*f, *out) : bench_folder_like(*like, *out); });

  CLI::App* linear =
      command->add_subcommand("linear", "The linears of a Z-Image block, per precision (GPU)");
  auto l = std::make_shared<BenchOptions>();
  l->device = "cuda";
  add_bench_options(*linear, *l);
  linear->callback([l] { bench_linear_on_device(*l); });

  CLI::App* training = command->add_subcommand(
      "train", "A training step of Z-Image's blocks, or of a denoiser, with adapters (GPU)");
  auto t = std::make_shared<BenchOptions>();
  auto backward = std::make_shared<std::string>("bf16");
  t->device = "cuda";
  t->precisions = {"bf16", "fp8"};
  t->layers = 8;
  t->batch = 4;
  add_bench_options(*training, *t);
  training->add_option("--layers", t->layers, "Blocks")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 200));
  training
      ->add_option("--family", t->family,
                   "The whole denoiser of a family instead: " + measured_families())
      ->type_name("F");
  training->add_option("--backward", *backward, "bf16, or fp8 for bases in 8 or 4 bits")
      ->capture_default_str()
      ->type_name("B")
      ->check(CLI::IsMember({"bf16", "fp8"}));
  CLI::App* lora = command->add_subcommand(
      "lora", "One linear with an adapter, forward and backward, at 4k, 16k and 64k tokens (GPU)");
  auto one = std::make_shared<BenchOptions>();
  auto one_backward = std::make_shared<std::string>("fp8");
  one->device = "cuda";
  one->precisions = {"bf16", "fp8"};
  add_bench_options(*lora, *one);
  lora->add_option("--backward", *one_backward, "bf16, or fp8 for bases in 8 or 4 bits")
      ->capture_default_str()
      ->type_name("B")
      ->check(CLI::IsMember({"bf16", "fp8"}));
  lora->callback([one, one_backward] { bench_lora_on_device(*one, *one_backward == "fp8"); });

  training->callback([t, backward] { bench_train_on_device(*t, *backward == "fp8"); });

  CLI::App* pipeline = command->add_subcommand(
      "pipeline", "Text encoder, 8 steps and VAE of a full-size Z-Image at 1024x1024 (GPU)");
  auto p = std::make_shared<BenchOptions>();
  p->device = "cuda";
  p->precisions = {"bf16", "fp8"};
  add_bench_options(*pipeline, *p);
  pipeline
      ->add_option("--text-precision", p->text_precision,
                   "Of the text encoder (default: bf16, or fp32 beside fp32)")
      ->type_name("P")
      ->check(precision_name());
  pipeline->callback([p] { bench_pipeline_on_device(*p); });
}

}  // namespace halftone::cli
