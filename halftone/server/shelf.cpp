#include "halftone/server/shelf.h"

#include <sys/stat.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/engine/precision.h"
#include "halftone/io/checkpoint.h"
#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/stored_weights.h"
#include "halftone/server/api_error.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

bool is_model_folder(const fs::path& path) { return path_exists(path / "model_index.json"); }

std::string state_of(const fs::path& path) {
  struct stat now{};
  if (::stat(path.c_str(), &now) != 0) return "";
  return fmt::format("{}:{}:{}:{}.{}", path.string(), now.st_ino, now.st_size, now.st_mtim.tv_sec,
                     now.st_mtim.tv_nsec);
}

// Those of a folder, by name; none where it cannot be read.
std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!at->path().filename().string().starts_with('.')) found.push_back(at->path());
  }
  std::ranges::sort(found, [](const fs::path& a, const fs::path& b) {
    return natural_less(a.filename().string(), b.filename().string());
  });
  return found;
}

// The denoiser's file that a training of all weights has written has another one beside it that
// says which folder the rest is in: NAME.json, {"base": "..."}.
fs::path base_of(const fs::path& file) {
  const fs::path note = fs::path(file).replace_extension(".json");
  if (!path_exists(note)) return {};
  try {
    const auto json = read_json_file(note);
    const fs::path base = json.value("base", "");
    return base.is_relative() ? note.parent_path() / base : base;
  } catch (const std::exception&) {  // no note of ours
    return {};
  }
}

ordered_json precision_json(const std::string& name, std::string_view support,
                            const std::string& why) {
  return {{"name", name}, {"support", support}, {"why", why}};
}

}  // namespace

ordered_json certificate_json(const std::optional<Certificate>& c) {
  if (!c) return nullptr;
  return {{"precision", c->precision},
          {"reference", c->reference},
          {"velocity_cosine_mean", c->velocity_cosine.mean},
          {"velocity_cosine_worst", c->velocity_cosine.worst},
          {"ssim_mean", c->ssim.mean},
          {"prompts", c->prompts},
          {"pictures", c->pictures}};
}

Shelf::Shelf(Engine& engine, ShelfOptions options) : options_(std::move(options)) {
  const Backend backend = engine.backend(options_.device);
  device_ = backend.info;
  device_why_ = backend.fallback;
}

std::shared_ptr<const ModelOnShelf> Shelf::read(const fs::path& path, const fs::path& base) const {
  auto model = std::make_shared<ModelOnShelf>();
  model->id = base.empty() ? path.filename().string() : path.stem().string();
  model->path = path;
  model->base = base;
  try {
    model->parts = std::make_shared<const ModelParts>(ModelParts::read(find_model(path, base)));
    const Checkpoint denoiser = Checkpoint::open(model->parts->denoiser_path());
    model->bytes = denoiser.tensor_bytes();
    model->certificate = certificate_in(denoiser.metadata(), denoiser.path().string());
    std::map<std::string, int> formats;
    for (const auto& [name, weight] : read_stored_weights(denoiser).weights) {
      ++formats[std::string(weight.format.name)];
    }
    model->stored = format_names(formats);
    const StoredChoice stored = choose_stored(denoiser, device_, options_.threshold);
    model->stored_is_chosen = stored.as_stored;
    model->stored_why = stored.why;
  } catch (const Error& error) {
    model->parts = nullptr;
    model->error = error.message();
  }
  return model;
}

std::vector<std::shared_ptr<const ModelOnShelf>> Shelf::models() {
  std::vector<std::pair<fs::path, fs::path>> found;
  for (const fs::path& place : options_.models) {
    if (is_model_folder(place)) {
      found.emplace_back(place, fs::path());
      continue;
    }
    for (const fs::path& entry : entries(place)) {
      if (is_folder(entry) && is_model_folder(entry)) found.emplace_back(entry, fs::path());
      if (entry.extension() != ".safetensors") continue;
      if (const fs::path base = base_of(entry); !base.empty()) found.emplace_back(entry, base);
    }
  }
  const std::scoped_lock lock(mutex_);
  std::map<std::string, std::shared_ptr<const ModelOnShelf>> now;
  std::vector<std::shared_ptr<const ModelOnShelf>> models;
  for (const auto& [path, base] : found) {
    const fs::path index = base.empty() ? path / "model_index.json" : path;
    const std::string key = state_of(index) + "\n" + state_of(path);
    const auto before = known_.find(key);
    const auto model = now[key] = before != known_.end() ? before->second : read(path, base);
    const bool taken =
        std::ranges::any_of(models, [&](const auto& other) { return other->id == model->id; });
    if (!taken) models.push_back(model);  // the first of a name; others need another one
  }
  known_ = std::move(now);
  return models;
}

std::vector<AdapterOnShelf> Shelf::adapters() {
  std::vector<AdapterOnShelf> found;
  for (const fs::path& place : options_.loras) {
    for (const fs::path& entry : entries(place)) {
      if (entry.extension() != ".safetensors") continue;
      AdapterOnShelf adapter;
      adapter.name = entry.stem().string();
      adapter.path = entry;
      struct stat now{};
      if (::stat(entry.c_str(), &now) != 0 || !S_ISREG(now.st_mode)) continue;
      adapter.bytes = now.st_size;
      adapter.changed = static_cast<double>(now.st_mtim.tv_sec);
      const bool taken = std::ranges::any_of(
          found, [&](const AdapterOnShelf& other) { return other.name == adapter.name; });
      if (taken) continue;
      try {
        const SafetensorsFile file(entry);
        const auto text = [&](const char* key) {
          const auto at = file.metadata().find(key);
          return at == file.metadata().end() ? std::string() : at->second;
        };
        adapter.base_hash = text("halftone.base");
        adapter.base_precision = text("halftone.base_precision");
        adapter.trigger = text("halftone.trigger");
        adapter.steps = text("halftone.steps");
      } catch (const Error&) {
        continue;  // no safetensors
      }
      found.push_back(std::move(adapter));
    }
  }
  return found;
}

std::shared_ptr<const ModelOnShelf> Shelf::model(const std::string& id) {
  const auto all = models();
  for (const auto& model : all) {
    if (!id.empty() && model->id != id) continue;
    if (model->parts == nullptr && id.empty()) continue;
    if (model->parts == nullptr) throw invalid("model", "cannot be used: " + model->error);
    return model;
  }
  std::string names;
  for (const auto& model : all) names += (names.empty() ? "" : ", ") + model->id;
  if (names.empty()) throw invalid("model", "there is none in the server's folders");
  throw invalid("model", fmt::format("'{}' is none of {}", printable(id), names));
}

AdapterOnShelf Shelf::adapter(const std::string& name) {
  std::string names;
  const auto find = [&]() -> std::optional<AdapterOnShelf> {
    names.clear();
    for (AdapterOnShelf& adapter : adapters()) {
      if (adapter.name == name) return std::move(adapter);
      names += (names.empty() ? "" : ", ") + adapter.name;
    }
    return std::nullopt;
  };
  if (const auto found = find()) return *found;
  if (options_.fetch_adapter && options_.fetch_adapter(name)) {
    if (const auto found = find()) return *found;
  }
  throw invalid("loras",
                fmt::format("'{}' is {}{}", printable(name),
                            names.empty() ? "not there; there is none yet" : "none of ", names));
}

ModelSpec Shelf::spec(const ModelOnShelf& model, const std::string& precision) const {
  ModelSpec spec;
  spec.path = model.path.string();
  spec.base = model.base.string();
  spec.precision = precision;
  spec.device = options_.device;
  spec.threads = options_.threads;
  spec.threshold = options_.threshold;
  return spec;
}

ordered_json Shelf::to_json(const ModelOnShelf& model,
                            const std::vector<std::string>& loaded) const {
  ordered_json out = {{"id", model.id}, {"title", model.id}, {"media", "image"}};
  out["error"] = model.error;
  out["loaded"] = loaded;
  out["bytes"] = model.bytes;
  if (model.parts == nullptr) return out;
  const ModelParts& parts = *model.parts;
  const Sampling& usual = parts.recommended;
  out["family"] = parts.family->name;
  out["family_title"] = parts.family->title;
  const bool cpu = device_.device.kind == DeviceKind::kCpu;
  const std::string wide = cpu ? "fp32" : "bf16";
  const std::string automatic = model.stored_is_chosen ? model.stored : wide;
  ordered_json precisions = ordered_json::array();
  precisions.push_back(precision_json("auto", "native", automatic + " here"));
  ordered_json formats = ordered_json::array(), backward = ordered_json::array();
  for (const Format& format : all_formats()) {
    const FormatSupport support = format_support(device_, format);
    const std::string name(format.name);
    ordered_json row = precision_json(name, to_string(support.support), std::string(support.why));
    const bool stored_otherwise = !model.stored.empty() && format.quantized();
    if (stored_otherwise && name != model.stored) {
      row = precision_json(name, "unavailable", "its weights are stored as " + model.stored);
    }
    formats.push_back(row);
    precisions.push_back(std::move(row));
  }
  out["precisions"] = precisions;
  std::string why = model.stored_why;
  if (why.empty())
    why = fmt::format("what {} computes in where nothing else is known", device_.name);
  out["recommended"] = {
      {"precision", automatic}, {"why", why}, {"certificate", certificate_json(model.certificate)}};
  out["stored"] = model.stored;
  const bool guided = usual.guidance_rule != GuidanceRule::kNone;
  out["defaults"] = {{"width", usual.width}, {"height", usual.height},
                     {"steps", usual.steps}, {"guidance", usual.guidance},
                     {"negative", guided},   {"multiple", parts.size_multiple()}};
  ordered_json schedulers = ordered_json::array();
  const bool flow = usual.scheduler.prediction == Prediction::kVelocity;
  for (const SchedulerChoice& choice : scheduler_choices()) {
    if (flow ? choice.flow : choice.diffusion) schedulers.push_back(choice.name);
  }
  out["schedulers"] = schedulers;
  out["memory"] = {{"weights", model.bytes}};
  out["supports_compile"] = true;
  const bool trainable = model.stored.empty();
  backward.push_back(precision_json("bf16", "native", ""));
  const FormatSupport fp8 = format_support(device_, formats::fp8);
  backward.push_back(precision_json("fp8", to_string(fp8.support),
                                    "for a base in 8 or 4 bits; " + std::string(fp8.why)));
  out["trains"] = {
      {"possible", true},
      {"why", trainable ? "" : "an adapter only: the weights are stored as " + model.stored},
      {"resolution", std::min(usual.width, usual.height)},
      {"precisions", formats},
      {"backward", backward},
      {"compile", {{"possible", true}, {"why", ""}}}};
  return out;
}

ordered_json Shelf::to_json(const AdapterOnShelf& adapter) const {
  return {{"name", adapter.name},           {"bytes", adapter.bytes},
          {"changed", adapter.changed},     {"base_precision", adapter.base_precision},
          {"base_hash", adapter.base_hash}, {"trigger", adapter.trigger},
          {"steps", adapter.steps}};
}

}  // namespace halftone
