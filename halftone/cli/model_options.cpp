#include "halftone/cli/model_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/cli/flags.h"
#include "halftone/engine/checks.h"
#include "halftone/quantize/prompt_sets.h"
#include "halftone/runtime/devices.h"

namespace halftone::cli {
namespace {

namespace fs = std::filesystem;

// "style.safetensors:0.8"; a number after the last colon is the strength.
LoraChoice parse_lora(const std::string& text) {
  LoraChoice choice{text, 1.0f};
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos && !path_exists(text)) {
    const std::string number = text.substr(colon + 1);
    char* end = nullptr;
    choice = {text.substr(0, colon), std::strtof(number.c_str(), &end)};
    if (number.empty() || *end != '\0' || !std::isfinite(choice.strength)) {
      throw Error(ErrorCode::kUsage, "--lora", "'{}' is not FILE or FILE:STRENGTH",
                  printable(text));
    }
  }
  while (choice.file.size() > 1 && choice.file.ends_with('/')) choice.file.pop_back();  // a folder
  return choice;
}

}  // namespace

std::vector<std::string> usual_prompts() { return usual_prompt_sets().certificate; }

void add_device_fallbacks(LoadedModel& loaded, bool strict) {
  for (const std::string& line : run_fallbacks(loaded)) {
    if (strict) throw Error(ErrorCode::kFallback, "strict", "{}", line);
    loaded.fallbacks.push_back(line);
  }
}

void check_memory(const LoadedModel& loaded, const ModelMemory& planned, const std::string& limit) {
  halftone::check_memory(loaded, planned, limit.empty() ? 0 : parse_bytes(limit, "--max-memory"));
}

ModelSpec spec_of(const ModelOptions& options, const Context& context) {
  ModelSpec spec;
  spec.path = options.model;
  spec.base = options.base;
  spec.precision = options.precision;
  spec.text_precision = options.text_precision;
  spec.compile = options.compile;
  spec.device = options.device;
  spec.stream_blocks = options.stream_blocks;
  for (const std::string& lora : options.loras) spec.loras.push_back(parse_lora(lora));
  spec.threads = options.threads;
  spec.strict = options.strict;
  spec.threshold = options.threshold;
  spec.cancelled = context.interrupted;
  return spec;
}

void share_machine(const Collective& processes, ModelOptions& options) {
  if (processes.size() == 1) return;
  if (options.threads == 0) {
    const char* const set = std::getenv("OMP_NUM_THREADS");
    const int asked = set != nullptr ? std::atoi(set) : 0;
    const int share = std::max(1, hardware_threads() / processes.local_size());
    options.threads = std::min(256, asked > 0 ? asked : share);
  }
  if (options.device != "auto" && options.device != "cuda") return;
  const auto gpus = static_cast<int>(list_gpus().gpus.size());
  const bool has_cuda = std::ranges::count(backends(), "cuda") > 0;
  if (gpus > 0 && has_cuda) options.device = fmt::format("cuda:{}", processes.local_rank() % gpus);
}

LoadedModel load(const ModelOptions& options, const Context& context) {
  if (!options.max_memory.empty()) parse_bytes(options.max_memory, "--max-memory");  // before work
  return context.engine->load(spec_of(options, context));
}

LoadedModel load_bare(const ModelOptions& options, const Context& context) {
  if (!options.max_memory.empty()) parse_bytes(options.max_memory, "--max-memory");
  ModelSpec spec = spec_of(options, context);
  spec.bare = true;
  return context.engine->load(spec);
}

void add_base_options(CLI::App& command, ModelOptions& options) {
  command
      .add_option("-m,--model", options.model,
                  "A model folder in diffusers layout, or a transformer as a single file (default: "
                  "the model that comes with the program)")
      ->type_name("DIR|FILE");
  command
      .add_option(
          "--base", options.base,
          "With a single file: the folder of tokenizer, text encoder, VAE and scheduler; of a "
          "whole FLUX.1 or Stable Diffusion 3 file tokenizers are enough")
      ->type_name("DIR");
  command
      .add_option(
          "--precision", options.precision,
          "auto, stored, fp32, bf16, fp8, fp8-tensor, mxfp8, nvfp4, nvfp4-4over6 or nvfp4-16x16; "
          "stored is what the weights "
          "are quantized to in their file, and auto is that where the device multiplies in it and "
          "their certificate meets the "
          "threshold; or else fp32 on the CPU and bf16 on a GPU")
      ->capture_default_str()
      ->type_name("P")
      ->check(precision_name({"auto", "stored"}));
  command
      .add_option("--text-precision", options.text_precision,
                  "Of the text encoders: auto, fp32, bf16, or a format that their linears' weights "
                  "are kept in (fp8, mxfp8, nvfp4, ...); auto is as their files have them, and to "
                  "generate fp8 where memory asks for it")
      ->capture_default_str()
      ->type_name("P")
      ->check(precision_name({"auto"}));
  command
      .add_option("--compile", options.compile,
                  "Fuse operations; on a GPU also record launches: auto, on or off")
      ->capture_default_str()
      ->type_name("C")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  command
      .add_option(
          "--max-memory", options.max_memory,
          "What may be taken in all (default: what is free). To generate, a model is kept in "
          "ways that need less where it has to be; nothing starts that needs more")
      ->type_name("SIZE");
  command.add_option("--device", options.device, "auto, cpu or cuda[:N]")
      ->capture_default_str()
      ->type_name("D")
      ->check(device_name());
  command.add_option("--threads", options.threads, "CPU threads (default: all)")
      ->type_name("N")
      ->check(CLI::Range(1, 256));
  command.add_flag("--strict", options.strict, "Fail with exit code 3 instead of falling back");
}

void add_model_options(CLI::App& command, ModelOptions& options) {
  add_base_options(command, options);
  command
      .add_option("--threshold", options.threshold,
                  "The least velocity cosine of a certificate that --precision auto trusts")
      ->capture_default_str()
      ->type_name("C")
      ->check(finite_number(0, 1));
  command.add_option("--lora", options.loras, "An adapter to apply; may be given several times")
      ->type_name("FILE|DIR[:STRENGTH]")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_scheduler_option(CLI::App& command, std::string& scheduler) {
  std::vector<std::string> names, flow, others;
  for (const SchedulerChoice& choice : scheduler_choices()) {
    names.emplace_back(choice.name);
    if (choice.flow) flow.emplace_back(choice.name);
    if (choice.diffusion) others.emplace_back(choice.name);
  }
  command
      .add_option("--scheduler", scheduler,
                  fmt::format("The sampler (default: the model's). Of flow models, as all but SDXL "
                              "are: {}; of models that predict noise, v or the sample: "
                              "{}",
                              fmt::join(flow, ", "), fmt::join(others, ", ")))
      ->type_name("NAME")
      ->check(CLI::IsMember(names));
}

void add_sampling_options(CLI::App& command, SamplingOptions& options) {
  command
      .add_option("-s,--size", options.size, "Width and height in pixels (default: the model's)")
      ->type_name("WxH");
  command.add_option("--steps", options.steps, "Denoising steps (default: the model's)")
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  command.add_option("-g,--guidance", options.guidance, "Guidance (default: the model's)")
      ->type_name("G")
      ->check(finite_number(0, 100));
  add_scheduler_option(command, options.scheduler);
  command.add_option("--seed", options.seed, "The first seed")
      ->capture_default_str()
      ->type_name("S")
      ->check(seed_number());
}

Sampling sampling_of(const SamplingOptions& options, const Sampling& usual) {
  Sampling chosen = usual;
  if (!options.size.empty()) std::tie(chosen.width, chosen.height) = parse_size(options.size);
  if (options.steps > 0) chosen.steps = options.steps;
  if (options.guidance >= 0) chosen.guidance = options.guidance;
  check_guidance(chosen.guidance, usual);
  if (!options.scheduler.empty()) {
    chosen.scheduler = with_scheduler(usual.scheduler, options.scheduler);
  }
  return chosen;
}

std::vector<fs::path> inputs_of(const ModelOptions& options) {
  std::vector<fs::path> inputs = {options.model, options.base};
  for (const std::string& lora : options.loras) inputs.emplace_back(parse_lora(lora).file);
  return inputs;
}

std::vector<std::string> gather_prompts(std::vector<std::string> prompts, const std::string& file) {
  if (file.empty()) return prompts;
  const auto mapped = Storage::map_file(file);
  constexpr size_t kMostBytes = 16 << 20;
  if (mapped->size() > kMostBytes) {
    throw Error(ErrorCode::kInvalidInput, file, "{} bytes of prompts are too many", mapped->size());
  }
  std::istringstream in(
      std::string(reinterpret_cast<const char*>(mapped->bytes().data()), mapped->size()));
  int number = 1;
  for (std::string line; std::getline(in, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();  // written on Windows
    if (line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (!is_valid_utf8(line)) {
      throw Error(ErrorCode::kInvalidInput, file, "line {} is not UTF-8: '{}'", number,
                  printable(line));
    }
    if (!line.empty()) prompts.push_back(line);
  }
  if (prompts.empty()) throw Error(ErrorCode::kInvalidInput, file, "holds no prompt");
  return prompts;
}

}  // namespace halftone::cli
