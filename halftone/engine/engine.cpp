#include "halftone/engine/engine.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/runtime/devices.h"

namespace halftone {
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

// How many blocks are streamed.
int parse_stream_blocks(const std::string& asked) {
  if (asked == "auto" || asked == "off") return 0;
  if (asked == "all") return kAllBlocks;
  int count = 0;
  const auto [end, error] = std::from_chars(asked.data(), asked.data() + asked.size(), count);
  if (error != std::errc() || end != asked.data() + asked.size() || count < 0) {
    throw Error(ErrorCode::kUsage, "stream-blocks", "'{}' is not auto, off, all or a number",
                printable(asked));
  }
  return count;
}

Choice choose_stream_blocks(const std::string& asked, const Backend& backend) {
  const bool streams = parse_stream_blocks(asked) > 0;
  if (streams && backend.device == nullptr) {
    return {asked, "off", "fallback", "the CPU reads weights in place, and streams none"};
  }
  return {asked, streams ? asked : "off", "native", streams ? "" : "all blocks are on the device"};
}

// Everything that ran in another way than asked for.
std::vector<std::string> fallbacks_of(const LoadedModel& loaded) {
  std::vector<std::string> lines;
  for (const Choice* choice :
       {&loaded.device, &loaded.precision, &loaded.text_precision, &loaded.stream_blocks}) {
    if (choice->how == "fallback") {
      lines.push_back(
          fmt::format("{} instead of {}: {}", choice->used, choice->asked, choice->why));
    }
  }
  if (loaded.threads < loaded.threads_asked) {
    lines.push_back(fmt::format("{} threads instead of {}: the system starts no more",
                                loaded.threads, loaded.threads_asked));
  }
  if (loaded.model == nullptr) return lines;
  for (const auto& kept : loaded.model->report().quantized.kept) {
    if (kept.unsupported) {
      lines.push_back(fmt::format("'{}' stays in high precision: {}", kept.weight, kept.reason));
    }
  }
  for (const EncoderReport& encoder : loaded.model->report().encoders) {
    for (const auto& kept : encoder.quantized.kept) {
      if (!kept.unsupported) continue;
      lines.push_back(fmt::format("{}: '{}' stays in high precision: {}", encoder.folder,
                                  kept.weight, kept.reason));
    }
  }
  for (const AdapterChoice& choice : loaded.adapters) {
    const LoraReport& lora = choice.adapter->lora().report();
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

// The files of a model as they are now: where each lies, and whether it is still the same.
std::string state_of(const ModelFiles& files) {
  std::string state;
  const auto add = [&](const fs::path& path) {
    struct stat now{};
    if (::stat(path.c_str(), &now) != 0 || !S_ISREG(now.st_mode)) return;
    state += fmt::format("{} {} {} {}.{}\n", now.st_dev, now.st_ino, now.st_size,
                         now.st_mtim.tv_sec, now.st_mtim.tv_nsec);
  };
  for (const fs::path& path : {files.base, files.denoiser}) {
    if (path.empty()) continue;
    add(path);
    std::error_code error;
    for (fs::recursive_directory_iterator at(path, error), end; !error && at != end;
         at.increment(error)) {
      add(at->path());
    }
  }
  return state;
}

void note_fallbacks(LoadedModel& loaded, bool strict) {
  loaded.fallbacks = fallbacks_of(loaded);
  if (strict && !loaded.fallbacks.empty()) {
    throw Error(ErrorCode::kFallback, "strict", "{}", loaded.fallbacks[0]);
  }
}

}  // namespace

void tell_streamed(const StreamReport& streamed, Choice& choice) {
  if (streamed.blocks == 0) return;
  choice.used = std::to_string(streamed.blocks);
  choice.why =
      fmt::format("of {} blocks, {} in pinned memory of the CPU; {} on the device for them",
                  streamed.of, human_bytes(streamed.bytes), human_bytes(streamed.slots));
}

GenerateRequest LoadedModel::request(const std::string& prompt) const {
  GenerateRequest request;
  request.prompt = prompt;
  request.width = sampling.width;
  request.height = sampling.height;
  request.steps = sampling.steps;
  request.guidance = sampling.guidance;
  request.scheduler = sampling.scheduler;
  request.adapters = adapters;
  return request;
}

bool LoadedModel::tells_text_precision() const {
  return text_precision.asked != "auto" ||
         std::ranges::any_of(model->report().encoders,
                             [](const EncoderReport& encoder) { return !encoder.formats.empty(); });
}

std::unique_ptr<Pipeline> LoadedModel::make_pipeline(std::shared_ptr<Arena> arena) const {
  auto pipeline = std::make_unique<Pipeline>(model, cancelled, std::move(arena));
  if (takes_turns) pipeline->take_turns();
  pipeline->set_tiles(tiles);
  return pipeline;
}

Backend Engine::backend(const std::string& device) {
  const std::scoped_lock lock(mutex_);
  const auto found = backends_.find(device);
  if (found != backends_.end()) return found->second;
  return backends_[device] = choose_backend(device);
}

LoadedModel Engine::load(const ModelSpec& spec) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel loaded;
  const Backend backend = this->backend(spec.device);
  loaded.context = backend.device;
  loaded.device = device_choice(spec.device, backend);
  loaded.compile = choose_compile(spec.compile, backend);
  loaded.stream_blocks = choose_stream_blocks(spec.stream_blocks, backend);
  loaded.threads = start_threads(spec.threads);
  loaded.threads_asked = spec.threads > 0 ? spec.threads : hardware_threads();
  note_fallbacks(loaded, spec.strict);
  loaded.path = spec.path.empty() ? default_model() : spec.path;
  if (loaded.path.empty()) {
    throw Error(ErrorCode::kUsage, "model",
                "is needed: the model that comes with the program was not found beside it");
  }
  const ModelParts parts = ModelParts::read(find_model(loaded.path, spec.base));

  LoadOptions how;
  set_precision(spec.precision, backend.info, how);
  set_text_precision(spec.text_precision, how);
  how.compile = loaded.compile.used == "on";
  how.stream_blocks = parse_stream_blocks(loaded.stream_blocks.used);
  how.stream_encoders = spec.stream_encoders && backend.device != nullptr;
  how.bare = spec.bare;
  how.kernels = backend.kernels;
  how.stream = backend.stream(loaded.threads);
  StoredChoice stored;
  if (spec.precision == "auto") {
    stored = choose_stored(Checkpoint::open(parts.denoiser_path()), backend.info, spec.threshold);
    how.quantize_activations = stored.as_stored;
  }
  how.cut_inputs = spec.cut_inputs;
  const std::string what =
      fmt::format("{}\n{}\n{} {}\n{}\n{}\n{}\n{} {}\n{}\n{}", spec.precision,
                  how.quantize_activations, spec.text_precision, spec.bare, loaded.compile.used,
                  loaded.device.used, loaded.threads, how.stream_blocks, how.stream_encoders,
                  fmt::join(spec.cut_inputs, " "), state_of(parts.files));
  {
    const std::scoped_lock lock(mutex_);
    loaded.model = models_[what].lock();
  }
  if (loaded.model == nullptr) {
    loaded.model = Model::load(parts, how);
    const std::scoped_lock lock(mutex_);
    std::erase_if(models_, [](const auto& entry) { return entry.second.expired(); });
    models_[what] = loaded.model;
  }
  tell_streamed(loaded.model->report().streamed, loaded.stream_blocks);
  loaded.sampling = parts.recommended;
  loaded.device_info = backend.info;
  loaded.precision = chosen_precision(spec.precision, backend.info, loaded.model->report(), stored);
  loaded.text_precision = chosen_text_precision(spec.text_precision, backend.info, *loaded.model);
  for (const LoraChoice& lora : spec.loras) {
    loaded.adapters.push_back({loaded.model->load_adapter(lora.file), lora.strength});
    loaded.adapters.back().adapter->lora().check_strength(lora.strength);
  }
  note_fallbacks(loaded, spec.strict);
  loaded.cancelled = spec.cancelled;
  loaded.pipeline = loaded.make_pipeline();
  loaded.pipeline->set_adapters(loaded.adapters);
  loaded.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return loaded;
}

std::string default_model() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* place : {"../share/halftone/models/emoji", "../../../models/emoji"}) {
    const fs::path folder = program / place;
    if (path_exists(folder / "model_index.json")) return folder.lexically_normal().string();
  }
  return {};
}

void check_memory(const LoadedModel& loaded, const ModelMemory& planned, int64_t limit) {
  // A device holds the weights already.
  const int64_t free = loaded.context != nullptr
                           ? loaded.context->memory().free + planned.owned_weights
                           : available_memory();
  const int64_t available = limit == 0 ? free : limit;
  if (planned.peak() > available) {
    throw Error(ErrorCode::kOutOfMemory, limit == 0 ? "memory" : "max-memory",
                "{} are needed (weights {}, values {}, scratch {}) and {} are {}; a smaller size "
                "or batch needs less",
                human_bytes(planned.peak()), human_bytes(planned.owned_weights),
                human_bytes(planned.arena + planned.slots + planned.borders),
                human_bytes(planned.workspace + planned.library), human_bytes(available),
                limit == 0 ? "free" : "allowed");
  }
}

std::vector<std::string> adapter_notes(const LoadedModel& loaded, const std::string& model_hash) {
  const auto is_plain = [](const std::string& p) { return p == "fp32" || p == "bf16"; };
  std::vector<std::string> lines;
  for (const AdapterChoice& choice : loaded.adapters) {
    const LoraReport& report = choice.adapter->lora().report();
    const std::string& used = loaded.precision.used;
    if (!report.base.empty() && report.base != model_hash) {
      lines.push_back(fmt::format("{} was trained beside another base", printable(report.file)));
    } else if (!report.base_precision.empty() && report.base_precision != used &&
               !(is_plain(report.base_precision) && is_plain(used))) {
      lines.push_back(fmt::format("{} was trained beside a base in {}, which is in {} here",
                                  printable(report.file), printable(report.base_precision), used));
    }
  }
  return lines;
}

std::vector<std::string> run_fallbacks(const LoadedModel& loaded, const Pipeline& pipeline) {
  std::vector<std::string> lines = pipeline.notes();
  if (loaded.context == nullptr) return lines;
  for (const std::string& line : loaded.context->fallbacks()) lines.push_back(line);
  return lines;
}

}  // namespace halftone
