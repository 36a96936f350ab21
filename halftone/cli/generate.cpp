// halftone generate: pictures from a prompt.
#include "halftone/diffusion/generate.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/cli/cli.h"
#include "halftone/cli/generate_report.h"
#include "halftone/cli/progress_bar.h"
#include "halftone/io/json.h"
#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/models/zimage/model.h"
#include "halftone/runtime/devices.h"

namespace halftone::cli {
namespace {

namespace fs = std::filesystem;

using Options = GenerateOptions;

Choice choose_device(const std::string& asked) {
  if (asked == "auto" || asked == "cpu") return {asked, "cpu", "native", ""};
  return {asked, "cpu", "fallback", "this version computes on the CPU"};
}

Choice choose_compile(const std::string& asked) {
  if (asked == "off") return {asked, "off", "native", "node by node"};
  return {asked, "on", "native", "operations on rows are fused"};
}

// What the loader is asked for.
void set_precision(const std::string& asked, LoadOptions& load) {
  load.automatic = asked == "auto";
  load.activations = asked == "auto" || asked == "fp32" ? DType::kF32 : DType::kBF16;
  const Format format = find_format(asked).value_or(formats::fp32);
  if (format.quantized()) load.format = format;
  load.quantize_activations = load.automatic || format.quantized();
}

// "nvfp4", or "fp8 and nvfp4".
std::string names_of(const std::map<std::string, int>& formats) {
  std::string out;
  for (const auto& [name, count] : formats) out += (out.empty() ? "" : " and ") + name;
  return out;
}

// What became of it.
Choice chosen_precision(const std::string& asked, const LoadReport& report) {
  const auto support = [](const Format& format) { return format_support(cpu_device(), format); };
  const bool quantizes = asked != "fp32" && asked != "bf16";
  if (report.formats.empty() || !quantizes) {
    const Format format = asked == "bf16" ? formats::bf16 : formats::fp32;
    const FormatSupport how = support(format);
    Choice choice{asked, std::string(format.name), std::string(to_string(how.support)),
                  std::string(how.why)};
    if (report.stored) choice.why += ", weights stored as " + names_of(report.formats);
    return choice;
  }
  const std::string used = names_of(report.formats);
  int linears = 0;
  bool per_picture = false;
  for (const auto& [name, count] : report.formats) {
    const Format format = find_format(name).value_or(formats::fp8);
    per_picture |= format.span == ScaleSpan::kTensor || format.global_scale;
    linears += count;
  }
  const FormatSupport how = support(*find_format(report.formats.begin()->first));
  Choice choice{asked, used, std::string(to_string(how.support)),
                fmt::format("{} linears of the blocks in {}: {}", linears, used, how.why)};
  if (report.stored) choice.why += "; weights as stored";
  if (per_picture) choice.why += "; activations scaled per picture, without calibration";
  if (asked != "auto" && asked != used) {
    choice.how = "fallback";
    choice.why = fmt::format("the checkpoint's weights are stored as {}", used);
  }
  return choice;
}

// Everything that ran in another way than asked for.
std::vector<std::string> fallbacks_of(const GenerateOutcome& outcome) {
  std::vector<std::string> lines;
  for (const Choice* choice : {&outcome.device, &outcome.precision}) {
    if (choice->how == "fallback") {
      lines.push_back(
          fmt::format("{} instead of {}: {}", choice->used, choice->asked, choice->why));
    }
  }
  for (const auto& kept : outcome.load_report.quantized.kept) {
    if (kept.unsupported) {
      lines.push_back(fmt::format("'{}' stays in high precision: {}", kept.weight, kept.reason));
    }
  }
  for (const LoraReport& lora : outcome.load_report.loras) {
    if (lora.unmatched.empty()) continue;
    std::string names;
    for (const std::string& key : lora.unmatched) {
      names += (names.empty() ? "'" : ", '") + printable(key) + "'";
    }
    lines.push_back(fmt::format("{}: {} of its tensors match nothing in the model: {}", lora.file,
                                lora.unmatched.size(), names));
  }
  return lines;
}

// "style.safetensors:0.8"; a number after the last colon is the strength.
LoraChoice parse_lora(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || path_exists(text)) return {text, 1.0f};
  const std::string number = text.substr(colon + 1);
  char* end = nullptr;
  const float strength = std::strtof(number.c_str(), &end);
  if (number.empty() || *end != '\0' || !std::isfinite(strength)) {
    throw Error(ErrorCode::kUsage, "--lora", "'{}' is not FILE or FILE:STRENGTH", printable(text));
  }
  return {text.substr(0, colon), strength};
}

// "2G", "512MiB" or a number of bytes.
int64_t parse_bytes(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  for (const auto& [letter, shift] : {std::pair{'K', 10}, {'M', 20}, {'G', 30}, {'T', 40}}) {
    const std::string name(1, letter);
    if (unit == name || unit == name + "iB" || unit == name + "B") factor = std::exp2(shift);
  }
  if (factor == 0 || !(number > 0) || number * factor > 0x1p62) {
    throw Error(ErrorCode::kUsage, "--max-memory", "'{}' is not a size such as 8GiB",
                printable(text));
  }
  return static_cast<int64_t>(number * factor);
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

void check_finite(const Tensor& latents) {
  for (const float v : latents.as<float>()) {
    if (!std::isfinite(v)) {
      throw Error(ErrorCode::kInvalidInput, "latents", "hold NaN or Inf: are the weights damaged?");
    }
  }
}

void check_memory(const ModelMemory& planned, const std::string& limit) {
  const int64_t available = limit.empty() ? available_memory() : parse_bytes(limit);
  if (planned.peak() > available) {
    throw Error(ErrorCode::kOutOfMemory, limit.empty() ? "memory" : "--max-memory",
                "{} are needed (weights {}, values {}, scratch {}) and {} are {}; a smaller --size "
                "or --batch needs less",
                human_bytes(planned.peak()), human_bytes(planned.owned_weights),
                human_bytes(planned.arena + planned.borders), human_bytes(planned.workspace),
                human_bytes(available), limit.empty() ? "free" : "allowed");
  }
}

// A folder in diffusers layout, or a file with --base for the rest.
zimage::ModelFiles find_model(const Options& options) {
  const auto check_folder = [](const std::string& folder) {
    if (!path_exists(folder)) throw Error(ErrorCode::kNotFound, folder, "no such model");
    if (!zimage::is_zimage_folder(folder)) {
      throw Error(ErrorCode::kUnsupported, folder,
                  "is not a known family: model_index.json does not name ZImagePipeline");
    }
  };
  if (!path_exists(options.model)) {
    throw Error(ErrorCode::kNotFound, options.model, "no such model");
  }
  if (is_folder(options.model)) {
    check_folder(options.model);
    if (!options.base.empty()) {
      throw Error(ErrorCode::kUsage, "--base", "is for a --model that is a single file");
    }
    return {options.model, {}};
  }
  if (!zimage::is_zimage_file(options.model)) {
    throw Error(ErrorCode::kUnsupported, options.model,
                "is not a known family: it holds no Z-Image transformer");
  }
  if (options.base.empty()) {
    throw Error(ErrorCode::kUsage, "--base",
                "is needed with a single file: a folder in diffusers layout for tokenizer, text "
                "encoder, VAE and scheduler");
  }
  check_folder(options.base);
  return {options.base, options.model};
}

GenerateRequest request_of(const Options& options) {
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
  return request;
}

void run_generate(const Options& options, const Context& context) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto start = Clock::now();
  GenerateOutcome outcome;
  outcome.device = choose_device(options.device);
  outcome.compile = choose_compile(options.compile);
  const auto forbid_fallbacks = [&] {
    outcome.fallbacks = fallbacks_of(outcome);
    if (options.strict && !outcome.fallbacks.empty()) {
      throw Error(ErrorCode::kFallback, "--strict", "{}", outcome.fallbacks[0]);
    }
  };
  forbid_fallbacks();
  const GenerateRequest request = request_of(options);
  for (const std::string& lora : options.loras) outcome.loras.push_back(parse_lora(lora));

  const zimage::ModelFiles files = find_model(options);
  LoadOptions how;
  set_precision(options.precision, how);
  how.compile = outcome.compile.used == "on";
  how.loras = outcome.loras;
  how.kernels = &cpu_kernels();
  how.stream = {options.threads > 0 ? options.threads : hardware_threads()};
  const auto model = zimage::load_model(files, how);
  const fs::path schedule_file = files.base / "scheduler" / "scheduler_config.json";
  const auto schedule =
      parse_flow_match_config(read_json_file(schedule_file), schedule_file.string());
  outcome.family = model->family();
  outcome.load_report = model->load_report();
  outcome.precision = chosen_precision(options.precision, outcome.load_report);
  forbid_fallbacks();
  outcome.planned = plan_generate(*model, request);
  check_memory(outcome.planned, options.max_memory);
  if (!options.json) print_plan(outcome.planned);
  outcome.load = since(start);

  ProgressBar bar("generating", context, options.json, ProgressBar::Unit::kSteps);
  outcome.result = generate(*model, schedule, request, [&](const Progress& progress) {
    outcome.measured = std::max(outcome.measured, anonymous_bytes());
    bar.update(progress);
  });
  bar.clear();
  check_finite(outcome.result.latents);
  outcome.hash = model->hash();
  for (int i = 0; i < options.count; ++i) {
    outcome.files.push_back(output_name(options, i));
    write_png(outcome.files.back(), outcome.result.images[i], png_text(options, outcome, i));
  }
  if (!options.save_latents.empty()) {
    write_safetensors(options.save_latents, {{"latents", outcome.result.latents}});
  }
  outcome.total = since(start);
  options.json ? print_json(to_json(options, outcome)) : print_summary(options, outcome);
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
  command
      ->add_option("-m,--model", o->model,
                   "A model folder in diffusers layout, or a transformer as a single file")
      ->required()
      ->type_name("DIR|FILE");
  command
      ->add_option("--base", o->base,
                   "With a single file: the folder of tokenizer, text encoder, VAE and scheduler")
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
  command
      ->add_option(
          "--precision", o->precision,
          "auto, fp32, bf16, fp8, fp8-tensor, mxfp8 or nvfp4; auto is what the weights are "
          "stored in, or fp32")
      ->capture_default_str()
      ->type_name("P")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp8", "fp8-tensor", "mxfp8", "nvfp4"}));
  command->add_option("--lora", o->loras, "An adapter to apply; may be given several times")
      ->type_name("FILE[:STRENGTH]")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--compile", o->compile, "Fuse operations: auto, on or off")
      ->capture_default_str()
      ->type_name("C")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  command
      ->add_option("--max-memory", o->max_memory,
                   "Refuse to start where more memory is planned (default: what is free)")
      ->type_name("SIZE");
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
