// halftone generate: pictures from a prompt.
#include "halftone/diffusion/generate.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/cli/cli.h"
#include "halftone/cli/progress_bar.h"
#include "halftone/io/json.h"
#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/models/zimage/model.h"

namespace halftone::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Options {
  std::string model, prompt, negative, size = "1024x1024", precision = "auto", device = "auto";
  std::string noise, save_latents, output;
  int steps = 8, count = 1, batch = 1, threads = 0;
  float guidance = 0;
  uint64_t seed = 0;
  bool json = false, strict = false;
};

// What was asked for, what ran, and why.
struct Choice {
  std::string asked, used, how, why;
};

Choice choose_precision(const std::string& asked) {
  if (asked == "auto") return {asked, "fp32", "native", "the CPU's own arithmetic"};
  if (asked == "fp32") return {asked, "fp32", "native", "float32 arithmetic"};
  return {asked, "bf16", "emulated", "float32 arithmetic on bf16-rounded values"};
}

Choice choose_device(const std::string& asked) {
  if (asked == "auto" || asked == "cpu") return {asked, "cpu", "native", ""};
  return {asked, "cpu", "fallback", "this version computes on the CPU"};
}

std::pair<int64_t, int64_t> parse_size(const std::string& text) {
  int64_t width = 0, height = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%5ldx%5ld%c", &width, &height, &rest) != 2 || width < 1 ||
      height < 1) {
    throw Error(ErrorCode::kUsage, "--size", "'{}' is not WIDTHxHEIGHT", printable(text));
  }
  return {width, height};
}

// Letters and digits of the prompt, for the name of a file.
std::string slug(const std::string& prompt) {
  std::string out;
  for (const char c : prompt) {
    const bool keep = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (keep) {
      out += c;
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
    if (out.size() >= 48) break;
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "picture" : out;
}

// OUT.png, or OUT-1.png, OUT-2.png, ... for several.
fs::path output_name(const Options& options, int index) {
  const fs::path base =
      options.output.empty() ? fs::path(slug(options.prompt) + ".png") : fs::path(options.output);
  if (options.count == 1) return base;
  fs::path name = base.parent_path() / base.stem();
  name += fmt::format("-{}", index + 1);
  name += base.extension();
  return name;
}

Tensor load_noise(const std::string& path) {
  const SafetensorsFile file(path);
  const TensorEntry* entry = file.find("latents");
  if (entry == nullptr && file.tensors().size() == 1) entry = &file.tensors()[0];
  if (entry == nullptr) throw Error(ErrorCode::kInvalidInput, path, "has no tensor 'latents'");
  return file.tensor(*entry);
}

// Memory of this process that is not a file's, in bytes.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

struct Outcome {
  GenerateResult result;
  std::vector<fs::path> files;
  std::string family, hash;
  ModelMemory memory;
  int64_t measured = 0;
  double load = 0, total = 0;
};

PngText png_text(const Options& options, const Outcome& outcome, const Choice& precision,
                 int index) {
  return {{"Software", std::string("halftone ") + version()},
          {"prompt", options.prompt},
          {"negative", options.negative},
          {"seed", std::to_string(options.seed + static_cast<uint64_t>(index))},
          {"steps", std::to_string(options.steps)},
          {"guidance", fmt::format("{}", options.guidance)},
          {"precision_asked", precision.asked},
          {"precision_used", precision.used},
          {"model_hash", outcome.hash}};
}

ordered_json to_json(const Choice& choice) {
  return {{"asked", choice.asked}, {"used", choice.used}, {"how", choice.how}, {"why", choice.why}};
}

ordered_json to_json(const Options& options, const Outcome& outcome, const Choice& precision,
                     const Choice& device) {
  const auto& seconds = outcome.result.seconds;
  ordered_json out = {{"model", options.model},
                      {"family", outcome.family},
                      {"model_hash", outcome.hash},
                      {"prompt", options.prompt},
                      {"negative", options.negative},
                      {"seed", options.seed},
                      {"size", options.size},
                      {"steps", options.steps},
                      {"guidance", options.guidance},
                      {"precision", to_json(precision)},
                      {"device", to_json(device)},
                      {"seconds",
                       {{"load", outcome.load},
                        {"text", seconds.text},
                        {"denoise", seconds.denoise},
                        {"decode", seconds.decode},
                        {"total", outcome.total}}},
                      {"peak_bytes",
                       {{"planned", outcome.memory.weights + outcome.memory.arenas},
                        {"measured", outcome.measured}}}};
  out["images"] = ordered_json::array();
  for (const fs::path& file : outcome.files) out["images"].push_back(file.string());
  return out;
}

void check_finite(const Tensor& latents) {
  for (const float v : latents.as<float>()) {
    if (!std::isfinite(v)) {
      throw Error(ErrorCode::kInvalidInput, "latents", "hold NaN or Inf: are the weights damaged?");
    }
  }
}

Outcome run_pipeline(const Options& options, const GenerateRequest& request,
                     const Choice& precision, const Context& context) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto start = Clock::now();
  const fs::path folder = options.model;
  zimage::LoadOptions how;
  how.activations = precision.used == "bf16" ? DType::kBF16 : DType::kF32;
  how.kernels = &cpu_kernels();
  how.stream = {options.threads > 0 ? options.threads : hardware_threads()};
  const auto model = zimage::load_model(folder, how);
  const fs::path schedule_file = folder / "scheduler" / "scheduler_config.json";
  const auto schedule =
      parse_flow_match_config(read_json_file(schedule_file), schedule_file.string());

  Outcome outcome;
  outcome.load = since(start);
  outcome.family = model->family();
  ProgressBar bar("generating", context, options.json, ProgressBar::Unit::kSteps);
  outcome.result = generate(*model, schedule, request, [&](const Progress& progress) {
    outcome.measured = std::max(outcome.measured, anonymous_bytes());
    bar.update(progress);
  });
  bar.clear();
  check_finite(outcome.result.latents);
  outcome.hash = model->hash();
  outcome.memory = model->memory();
  for (int i = 0; i < options.count; ++i) {
    outcome.files.push_back(output_name(options, i));
    write_png(outcome.files.back(), outcome.result.images[i],
              png_text(options, outcome, precision, i));
  }
  if (!options.save_latents.empty()) {
    write_safetensors(options.save_latents, {{"latents", outcome.result.latents}});
  }
  outcome.total = since(start);
  return outcome;
}

void check_model(const std::string& model) {
  if (!path_exists(model)) throw Error(ErrorCode::kNotFound, model, "no such model");
  if (!is_folder(model)) {
    throw Error(ErrorCode::kUnsupported, model,
                "is a file; a folder in diffusers layout is needed");
  }
  if (!zimage::is_zimage_folder(model)) {
    throw Error(ErrorCode::kUnsupported, model,
                "is not a known family: model_index.json does not name ZImagePipeline");
  }
}

void run_generate(const Options& options, const Context& context) {
  const Choice precision = choose_precision(options.precision);
  const Choice device = choose_device(options.device);
  if (options.strict && device.how == "fallback") {
    throw Error(ErrorCode::kFallback, "--device", "{} was asked for, but {}", device.asked,
                device.why);
  }
  check_model(options.model);
  GenerateRequest request;
  request.prompt = options.prompt;
  request.negative = options.negative;
  std::tie(request.width, request.height) = parse_size(options.size);
  request.steps = options.steps;
  request.guidance = options.guidance;
  request.seed = options.seed;
  request.count = options.count;
  request.batch = std::min(options.batch, options.count);
  if (!options.noise.empty()) request.noise = load_noise(options.noise);

  const Outcome outcome = run_pipeline(options, request, precision, context);
  if (options.json) {
    print_json(to_json(options, outcome, precision, device));
    return;
  }
  const auto& seconds = outcome.result.seconds;
  for (const fs::path& file : outcome.files) fmt::print("{}\n", file.string());
  fmt::print("  {} at {}, {} steps, guidance {}, seed {}, {} on {}\n", outcome.family, options.size,
             options.steps, options.guidance, options.seed, precision.used, device.used);
  if (device.how == "fallback") {
    fmt::print("  fallback: {} instead of {}: {}\n", device.used, device.asked, device.why);
  }
  const int batches = (options.count + options.batch - 1) / options.batch;
  const double steps = static_cast<double>(options.steps) * batches;
  fmt::print("  load {}, text {}, denoise {} ({:.2f} steps/s), decode {}\n",
             human_seconds(outcome.load), human_seconds(seconds.text),
             human_seconds(seconds.denoise), steps / (seconds.denoise + 1e-9),
             human_seconds(seconds.decode));
  fmt::print("  memory: weights {}, values {}\n", human_bytes(outcome.memory.weights),
             human_bytes(outcome.memory.arenas));
}

}  // namespace

void add_generate(CLI::App& app, const Context& context) {
  CLI::App* command = app.add_subcommand("generate", "Make pictures from a prompt");
  command->footer(
      "The same seed gives the same picture, whatever batch it is made in; picture i of --count "
      "has\n"
      "seed + i. The PNG carries prompt, seed, steps, precision and the model's hash. Examples:\n"
      "  halftone generate --model Z-Image-Turbo \"a lighthouse at dusk\" --size 768x512\n"
      "  halftone generate --model Z-Image \"a cat\" --negative \"blurry\" --guidance 4 --steps 28 "
      "--count 4\n"
      "--noise and --save-latents (safetensors, tensor 'latents' [count, C, h, w]) are for "
      "comparing\n"
      "with other implementations.");
  auto o = std::make_shared<Options>();
  command->add_option("-m,--model", o->model, "A model folder in diffusers layout")
      ->required()
      ->type_name("DIR");
  command->add_option("prompt,-p,--prompt", o->prompt, "What to show")
      ->required()
      ->type_name("TEXT");
  command->add_option("-n,--negative", o->negative, "What to avoid; needs --guidance")
      ->type_name("TEXT");
  command->add_option("-s,--size", o->size, "Width and height in pixels")
      ->capture_default_str()
      ->type_name("WxH");
  command->add_option("--steps", o->steps, "Denoising steps")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  command
      ->add_option("-g,--guidance", o->guidance,
                   "Strength of the prompt against the negative one; 0 is off")
      ->capture_default_str()
      ->type_name("G")
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--seed", o->seed, "Seed of the first picture")
      ->capture_default_str()
      ->type_name("S");
  command->add_option("-c,--count", o->count, "Pictures to make")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 10000));
  command->add_option("-b,--batch", o->batch, "Pictures made at a time")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 64));
  command->add_option("--precision", o->precision, "auto, fp32 or bf16")
      ->capture_default_str()
      ->type_name("P")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}));
  command->add_option("--device", o->device, "auto, cpu or cuda[:N]")
      ->capture_default_str()
      ->type_name("D")
      ->check(CLI::Validator(
          [](std::string& d) {
            const bool known = d == "auto" || d == "cpu" || d == "cuda" || d.starts_with("cuda:");
            return known ? std::string() : "'" + d + "' is no device";
          },
          ""));
  command->add_option("--noise", o->noise, "Take the initial latents from this file")
      ->type_name("FILE");
  command->add_option("--save-latents", o->save_latents, "Write the final latents to this file")
      ->type_name("FILE");
  command
      ->add_option("-o,--output", o->output, "The PNG to write; for several, -1, -2, ... is added")
      ->type_name("OUT.png");
  command->add_option("--threads", o->threads, "CPU threads (default: all)")
      ->type_name("N")
      ->check(CLI::Range(1, 256));
  command->add_flag("--strict", o->strict, "Fail with exit code 3 instead of falling back");
  command->add_flag("--json", o->json, "Print one JSON object instead of text");
  command->callback([o, &context] { run_generate(*o, context); });
}

}  // namespace halftone::cli
