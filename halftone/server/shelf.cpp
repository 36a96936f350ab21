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

std::string file_state(const std::filesystem::path& path) {
  struct stat now{};
  if (::stat(path.c_str(), &now) != 0) return "";
  return fmt::format("{}:{}:{}:{}.{}", path.string(), now.st_ino, now.st_size, now.st_mtim.tv_sec,
                     now.st_mtim.tv_nsec);
}

std::vector<std::filesystem::path> visible_entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (!at->path().filename().string().starts_with('.')) found.push_back(at->path());
  }
  std::ranges::sort(found, [](const auto& a, const auto& b) {
    return natural_less(a.filename().string(), b.filename().string());
  });
  return found;
}

namespace {

namespace fs = std::filesystem;

bool is_model_folder(const fs::path& path) { return path_exists(path / "model_index.json"); }

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

}  // namespace

Shelf::Shelf(Engine& engine, ShelfOptions options) : options_(std::move(options)) {
  const Backend backend = engine.backend(options_.device);
  device_ = backend.info;
  device_why_ = backend.fallback;
}

std::shared_ptr<const ModelOnShelf> Shelf::read(const fs::path& path, const fs::path& base,
                                                const std::string& state) const {
  auto model = std::make_shared<ModelOnShelf>();
  model->state = state;
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
    model->adapted = model->parts->adapted();
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
    for (const fs::path& entry : visible_entries(place)) {
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
    const std::string key = file_state(index) + "\n" + file_state(path);
    const auto before = known_.find(key);
    const auto model = now[key] = before != known_.end() ? before->second : read(path, base, key);
    const bool taken =
        std::ranges::any_of(models, [&](const auto& other) { return other->id == model->id; });
    if (!taken) models.push_back(model);  // the first of a name; others need another one
  }
  known_ = std::move(now);
  return models;
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

ModelSpec Shelf::spec(const ModelOnShelf& model, const std::string& precision) const {
  ModelSpec spec;
  spec.path = model.path.string();
  spec.base = model.base.string();
  spec.precision = precision;
  spec.text_precision = options_.text_precision;
  spec.device = options_.device;
  spec.threads = options_.threads;
  spec.threshold = options_.threshold;
  return spec;
}

}  // namespace halftone
