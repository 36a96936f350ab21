#include "halftone/cli/model_options.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/cli/flags.h"
#include "halftone/cli/prompt_sets.h"
#include "halftone/io/config_reader.h"
#include "halftone/io/json.h"
#include "halftone/io/stored_weights.h"
#include "halftone/models/zimage/model.h"
#include "halftone/quantize/certificate.h"
#include "halftone/runtime/devices.h"

namespace halftone::cli {
namespace {

namespace fs = std::filesystem;

Choice device_choice(const std::string& asked, const Backend& backend) {
  if (!backend.fallback.empty()) return {asked, "cpu", "fallback", backend.fallback};
  const bool cpu = backend.device == nullptr;
  return {asked, backend.info.device.str(), "native", cpu ? "" : backend.info.name};
}

Choice choose_compile(const std::string& asked, const Backend& backend) {
  if (asked == "off") return {asked, "off", "native", "node by node"};
  return {asked, "on", "native",
          backend.device == nullptr ? "operations on rows are fused"
                                    : "operations on rows are fused, products on one input merged, "
                                      "launches recorded"};
}

// What "auto" means for weights that are stored in high precision.
const Format& usual_format(const DeviceInfo& device) {
  return device.device.kind == DeviceKind::kCpu ? formats::fp32 : formats::bf16;
}

// Whether weights that are quantized in their file run so under "auto", and why or why not.
struct StoredChoice {
  bool as_stored = false;
  std::string why;
};
StoredChoice choose_stored(const Checkpoint& file, const DeviceInfo& device, double threshold) {
  const StoredWeights stored = read_stored_weights(file);
  if (stored.weights.empty()) return {};
  for (const auto& [name, weight] : stored.weights) {
    const FormatSupport how = format_support(device, weight.format);
    if (how.support != Support::kNative) {
      return {false, fmt::format("{} is not native here: {}", weight.format.name, how.why)};
    }
  }
  const auto certificate = certificate_in(file.metadata(), file.path().string());
  if (!certificate) return {false, "the file has no certificate of what its format costs"};
  const double cosine = certificate->velocity_cosine.mean;
  return {certificate->meets(threshold),
          fmt::format("its certificate says a velocity cosine of {:.5f}, {} the threshold of {:g}",
                      cosine, certificate->meets(threshold) ? "above" : "below", threshold)};
}

// What the loader is asked for.
void set_precision(const std::string& asked, const DeviceInfo& device, LoadOptions& load) {
  load.automatic = asked == "auto" || asked == "stored";
  const std::string_view activations = load.automatic ? usual_format(device).name : asked;
  load.activations = activations == "fp32" ? DType::kF32 : DType::kBF16;
  const Format format = find_format(asked).value_or(formats::fp32);
  if (format.quantized()) load.format = format;
  load.quantize_activations = load.automatic || format.quantized();
}

// What became of it.
Choice chosen_precision(const std::string& asked, const DeviceInfo& device,
                        const LoadReport& report, const StoredChoice& stored) {
  const auto support = [&](const Format& format) { return format_support(device, format); };
  const bool quantizes = asked != "fp32" && asked != "bf16";
  if (asked == "stored" && !report.stored) {
    throw Error(ErrorCode::kUsage, "--precision", "stored: the weights are not quantized");
  }
  if (asked == "auto" && report.stored && !stored.as_stored) {
    return {asked, "bf16", "native",
            fmt::format("computed with what the weights, stored as {}, stand for: {}",
                        format_names(report.formats), stored.why)};
  }
  if (report.formats.empty() || !quantizes) {
    const Format format = quantizes ? usual_format(device) : *find_format(asked);
    const FormatSupport how = support(format);
    Choice choice{asked, std::string(format.name), std::string(to_string(how.support)),
                  std::string(how.why)};
    if (report.stored) choice.why += ", weights stored as " + format_names(report.formats);
    return choice;
  }
  const std::string used = format_names(report.formats);
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
  if (asked == "auto") choice.why += "; " + stored.why;
  if (per_picture && !report.calibrated) {
    choice.why += "; activations scaled per picture, without calibration";
  }
  if (asked != "auto" && asked != "stored" && asked != used) {
    choice.how = "fallback";
    choice.why = fmt::format("the checkpoint's weights are stored as {}", used);
  }
  return choice;
}

// Everything that ran in another way than asked for.
std::vector<std::string> fallbacks_of(const LoadedModel& loaded, const LoadReport& report) {
  std::vector<std::string> lines;
  for (const Choice* choice : {&loaded.device, &loaded.precision}) {
    if (choice->how == "fallback") {
      lines.push_back(
          fmt::format("{} instead of {}: {}", choice->used, choice->asked, choice->why));
    }
  }
  if (loaded.threads < loaded.threads_asked) {
    lines.push_back(fmt::format("{} threads instead of {}: the system starts no more",
                                loaded.threads, loaded.threads_asked));
  }
  for (const auto& kept : report.quantized.kept) {
    if (kept.unsupported) {
      lines.push_back(fmt::format("'{}' stays in high precision: {}", kept.weight, kept.reason));
    }
  }
  for (const LoraReport& lora : report.loras) {
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

// A folder in diffusers layout, or a file with --base for the rest.
zimage::ModelFiles find_model(const ModelOptions& options) {
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

// The model that comes with the program: installed under share/, or in the source tree that the
// program was built in.
std::string find_default_model() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* place : {"../share/halftone/models/emoji", "../../../models/emoji"}) {
    const fs::path folder = program / place;
    if (path_exists(folder / "model_index.json")) return folder.lexically_normal().string();
  }
  throw Error(ErrorCode::kUsage, "--model",
              "is needed: the model that comes with the program was not found beside it");
}

ModelDefaults read_defaults(const fs::path& base) {
  ModelDefaults defaults;
  const fs::path file = base / "halftone.json";
  if (!path_exists(file)) return defaults;
  const auto json = read_json_file(file);
  const std::string where = file.string();
  const ConfigReader read(json, where);
  defaults.width = read.integer("width", defaults.width, 1, 65536);
  defaults.height = read.integer("height", defaults.height, 1, 65536);
  defaults.steps = static_cast<int>(read.integer("steps", defaults.steps, 1, 1000));
  defaults.guidance = static_cast<float>(read.number("guidance", defaults.guidance, 0, 100));
  read.finish();
  return defaults;
}

}  // namespace

std::string format_names(const std::map<std::string, int>& formats) {
  std::string out;
  for (const auto& [name, count] : formats) out += (out.empty() ? "" : " and ") + name;
  return out;
}

std::vector<std::string> usual_prompts() { return usual_prompt_sets().certificate; }

void add_device_fallbacks(LoadedModel& loaded, bool strict) {
  if (loaded.context == nullptr) return;
  for (const std::string& line : loaded.context->fallbacks()) {
    if (strict) throw Error(ErrorCode::kFallback, "--strict", "{}", line);
    loaded.fallbacks.push_back(line);
  }
}

void check_memory(const LoadedModel& loaded, const ModelMemory& planned, const std::string& limit) {
  // A device holds the weights already.
  const int64_t free = loaded.context != nullptr
                           ? loaded.context->memory().free + planned.owned_weights
                           : available_memory();
  const int64_t available = limit.empty() ? free : parse_bytes(limit, "--max-memory");
  if (planned.peak() > available) {
    throw Error(ErrorCode::kOutOfMemory, limit.empty() ? "memory" : "--max-memory",
                "{} are needed (weights {}, values {}, scratch {}) and {} are {}; a smaller --size "
                "or --batch needs less",
                human_bytes(planned.peak()), human_bytes(planned.owned_weights),
                human_bytes(planned.arena + planned.borders), human_bytes(planned.workspace),
                human_bytes(available), limit.empty() ? "free" : "allowed");
  }
}

nlohmann::ordered_json to_json(const Choice& choice) {
  return {{"asked", choice.asked}, {"used", choice.used}, {"how", choice.how}, {"why", choice.why}};
}

LoadedModel load(const ModelOptions& asked, const Context& context) {
  const auto start = std::chrono::steady_clock::now();
  ModelOptions options = asked;
  if (!options.max_memory.empty()) parse_bytes(options.max_memory, "--max-memory");  // before work
  LoadedModel loaded;
  const Backend backend = choose_backend(options.device);
  loaded.context = backend.device;
  loaded.device = device_choice(options.device, backend);
  loaded.compile = choose_compile(options.compile, backend);
  loaded.threads = start_threads(options.threads);
  loaded.threads_asked = options.threads > 0 ? options.threads : hardware_threads();
  const auto forbid_fallbacks = [&](const LoadReport& report) {
    loaded.fallbacks = fallbacks_of(loaded, report);
    if (options.strict && !loaded.fallbacks.empty()) {
      throw Error(ErrorCode::kFallback, "--strict", "{}", loaded.fallbacks[0]);
    }
  };
  forbid_fallbacks({});
  if (options.model.empty()) options.model = find_default_model();
  loaded.path = options.model;
  for (const std::string& lora : options.loras) loaded.loras.push_back(parse_lora(lora));
  const zimage::ModelFiles files = find_model(options);
  loaded.defaults = read_defaults(files.base);
  const fs::path schedule = files.base / "scheduler" / "scheduler_config.json";
  loaded.schedule = parse_flow_match_config(read_json_file(schedule), schedule.string());

  LoadOptions how;
  set_precision(options.precision, backend.info, how);
  how.compile = loaded.compile.used == "on";
  how.loras = loaded.loras;
  how.kernels = backend.kernels;
  how.cancelled = context.interrupted;
  how.stream = backend.stream(loaded.threads);
  StoredChoice stored;
  if (options.precision == "auto") {
    const fs::path transformer =
        files.transformer.empty() ? files.base / "transformer" : files.transformer;
    stored = choose_stored(Checkpoint::open(transformer), backend.info, options.threshold);
    how.quantize_activations = stored.as_stored;
  }
  loaded.model = zimage::load_model(files, how);
  loaded.precision =
      chosen_precision(options.precision, backend.info, loaded.model->load_report(), stored);
  forbid_fallbacks(loaded.model->load_report());
  loaded.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return loaded;
}

void add_model_options(CLI::App& command, ModelOptions& options) {
  command
      .add_option("-m,--model", options.model,
                  "A model folder in diffusers layout, or a transformer as a single file (default: "
                  "the model that comes with the program)")
      ->type_name("DIR|FILE");
  command
      .add_option("--base", options.base,
                  "With a single file: the folder of tokenizer, text encoder, VAE and scheduler")
      ->type_name("DIR");
  command
      .add_option(
          "--precision", options.precision,
          "auto, stored, fp32, bf16, fp8, fp8-tensor, mxfp8 or nvfp4; stored is what the weights "
          "are quantized to in their file, and auto is that where the device multiplies in it and "
          "their certificate meets the "
          "threshold; or else fp32 on the CPU and bf16 on a GPU")
      ->capture_default_str()
      ->type_name("P")
      ->check(
          CLI::IsMember({"auto", "stored", "fp32", "bf16", "fp8", "fp8-tensor", "mxfp8", "nvfp4"}));
  command
      .add_option("--threshold", options.threshold,
                  "The least velocity cosine of a certificate that --precision auto trusts")
      ->capture_default_str()
      ->type_name("C")
      ->check(finite_number(0, 1));
  command.add_option("--lora", options.loras, "An adapter to apply; may be given several times")
      ->type_name("FILE|DIR[:STRENGTH]")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option("--compile", options.compile,
                  "Fuse operations; on a GPU also record launches: auto, on or off")
      ->capture_default_str()
      ->type_name("C")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  command
      .add_option("--max-memory", options.max_memory,
                  "Refuse to start where more memory is planned (default: what is free)")
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
  command.add_option("--seed", options.seed, "The first seed")
      ->capture_default_str()
      ->type_name("S")
      ->check(seed_number());
}

ModelDefaults sampling_of(const SamplingOptions& options, const ModelDefaults& defaults) {
  ModelDefaults chosen = defaults;
  if (!options.size.empty()) std::tie(chosen.width, chosen.height) = parse_size(options.size);
  if (options.steps > 0) chosen.steps = options.steps;
  if (options.guidance >= 0) chosen.guidance = options.guidance;
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
