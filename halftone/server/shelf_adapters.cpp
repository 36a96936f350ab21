// Adapters on the shelf: found, read, and put there or taken away by clients.
#include <sodium.h>
#include <sys/stat.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/io/output.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/lora.h"
#include "halftone/server/api_error.h"
#include "halftone/server/names.h"
#include "halftone/server/shelf.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKind = ".safetensors";

// As people name files, too.
std::string name_of_lora(const std::string& name) {
  return name.ends_with(kKind) ? name.substr(0, name.size() - std::string_view(kKind).size())
                               : name;
}

ApiError taken(const std::string& name) {
  return {
      409, "conflict", "name",
      fmt::format("there is a LoRA '{}' already; ?replace=true puts this one in its place", name)};
}

}  // namespace

AdapterOnShelf Shelf::read_adapter(const fs::path& path, const std::string& state) const {
  AdapterOnShelf adapter;
  adapter.name = path.stem().string();
  adapter.path = path;
  adapter.state = state;
  try {
    const SafetensorsFile file(path);
    const auto text = [&](const char* key) {
      const auto at = file.metadata().find(key);
      return at == file.metadata().end() ? std::string() : at->second;
    };
    adapter.base_hash = text("halftone.base");
    adapter.base_precision = text("halftone.base_precision");
    adapter.trigger = text("halftone.trigger");
    adapter.steps = text("halftone.steps");
    check_lora_file(path);
  } catch (const Error& error) {
    adapter.error = error.message();
  }
  return adapter;
}

std::vector<AdapterOnShelf> Shelf::adapters() {
  std::vector<AdapterOnShelf> found;
  const std::scoped_lock lock(mutex_);
  std::map<std::string, AdapterOnShelf> now;
  for (const fs::path& place : options_.loras) {
    for (const fs::path& entry : visible_entries(place)) {
      if (entry.extension() != kKind) continue;
      const std::string name = entry.stem().string(), state = file_state(entry);
      struct stat file{};
      if (::stat(entry.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) continue;
      if (std::ranges::any_of(found, [&](const auto& other) { return other.name == name; })) {
        continue;
      }
      const auto before = known_adapters_.find(state);
      AdapterOnShelf adapter =
          before != known_adapters_.end() ? before->second : read_adapter(entry, state);
      adapter.bytes = file.st_size;
      constexpr double kNanosecond = 1e-9;
      adapter.changed = static_cast<double>(file.st_mtim.tv_sec) +
                        kNanosecond * static_cast<double>(file.st_mtim.tv_nsec);
      now[state] = adapter;
      found.push_back(std::move(adapter));
    }
  }
  known_adapters_ = std::move(now);
  return found;
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

AdapterFit Shelf::fit(const AdapterOnShelf& adapter, const ModelOnShelf& model) {
  if (!adapter.error.empty()) return {adapter.error, {}};
  const std::string key = adapter.state + "\n" + model.state;
  {
    const std::scoped_lock lock(mutex_);
    if (const auto known = known_fits_.find(key); known != known_fits_.end()) return known->second;
  }
  AdapterFit fit;
  try {
    fit.unmatched = LoraAdapter::examine(adapter.path, model.adapted).unmatched;
  } catch (const Error& error) {
    fit.why_not = error.message();
  }
  constexpr size_t kMost = 10000;
  const std::scoped_lock lock(mutex_);
  if (known_fits_.size() > kMost) known_fits_.clear();
  return known_fits_[key] = std::move(fit);
}

bool Shelf::is_own(const AdapterOnShelf& adapter) const {
  std::error_code error;
  return adapter.path.parent_path() == options_.loras.at(0) &&
         !fs::is_symlink(fs::symlink_status(adapter.path, error));
}

bool Shelf::put_adapter(const std::string& given, const std::string& bytes, bool replace) {
  const std::string name = name_of_lora(given);
  check_name("name", name);
  const fs::path folder = options_.loras.at(0), place = inside(folder, "name", name + kKind);
  bool is_new = true;
  for (const AdapterOnShelf& other : adapters()) {
    if (other.name != name) continue;
    if (!replace) throw taken(name);
    if (!is_own(other)) {
      throw ApiError(403, "forbidden", "name",
                     fmt::format("'{}' is a file of this machine, which is only read", name));
    }
    is_new = false;
  }
  // Under a name that no one takes for an adapter, until it is known to be one.
  const fs::path upload = folder / fmt::format(".{:08x}.upload", randombytes_random());
  std::error_code error;
  try {
    write_file(upload, bytes);
    check_lora_file(upload);
  } catch (const Error& problem) {
    fs::remove(upload, error);
    if (problem.code() == ErrorCode::kIo) throw;
    throw ApiError(415, "unsupported_media", "file", problem.message());
  }
  if (replace) {
    fs::rename(upload, place, error);
  } else {  // another one may have come meanwhile
    fs::create_hard_link(upload, place, error);
    std::error_code ignored;
    fs::remove(upload, ignored);
    if (error == std::errc::file_exists) throw taken(name);
  }
  if (error) throw Error(ErrorCode::kIo, "file", "{}", error.message());
  return is_new;
}

void Shelf::remove_adapter(const std::string& given) {
  const std::string name = name_of_lora(given);
  for (const AdapterOnShelf& adapter : adapters()) {
    if (adapter.name != name) continue;
    if (!is_own(adapter)) {
      throw ApiError(403, "forbidden", "name",
                     fmt::format("'{}' is a file of this machine, which is only read", name));
    }
    std::error_code error;
    if (!fs::remove(adapter.path, error) || error) {
      throw Error(ErrorCode::kIo, "name", "{}", error.message());
    }
    return;
  }
  throw not_found(fmt::format("there is no LoRA '{}'", printable(name)));
}

}  // namespace halftone
