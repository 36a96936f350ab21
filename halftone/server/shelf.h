// The models and adapters that requests may name: those found in the server's folders. Requests
// give names and never paths.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halftone/engine/certificate.h"
#include "halftone/engine/engine.h"
#include "halftone/engine/model_parts.h"

namespace halftone {

struct ShelfOptions {
  std::vector<std::filesystem::path> models;  // folders of models, or models themselves
  std::vector<std::filesystem::path> loras;   // folders of adapters, the first being our own
  std::string device = "auto", text_precision = "auto";
  int threads = 0;
  double threshold = 0.99;
  // Asked for an adapter that is in no folder; true: it is now.
  std::function<bool(const std::string& name)> fetch_adapter;
};

struct ModelOnShelf {
  std::string id;
  std::filesystem::path path, base;         // as ModelSpec has them
  std::shared_ptr<const ModelParts> parts;  // null where they cannot be read, and then
  std::string error;                        // why
  int64_t bytes = 0;                        // of its weights' files
  std::optional<Certificate> certificate;   // in its denoiser's file
  std::string stored;                       // the format that its weights are stored in, or empty
  bool stored_is_chosen = false;            // by precision "auto"
  std::string stored_why;
  AdaptedModel adapted;  // what adapters can change
  std::string state;     // changes with its files

  // What precision "auto" means for it on a device.
  std::string automatic(const DeviceInfo& device) const;
};

struct AdapterOnShelf {
  std::string name;
  std::filesystem::path path;
  std::string error;  // why it cannot be used with any model; empty: it can
  int64_t bytes = 0;
  double changed = 0;  // seconds since 1970
  std::string base_hash, base_precision, trigger, steps;
  std::string state;  // changes with its file
};

// Whether an adapter can be applied to a model, by the names and shapes of its tensors.
struct AdapterFit {
  std::string why_not;                 // empty: it can, and then
  std::vector<std::string> unmatched;  // these of its tensors match nothing
};

// What a file is now, as text that changes with it; empty where there is none.
std::string file_state(const std::filesystem::path& path);
// What lies in a folder, by name, but for what begins with a dot.
std::vector<std::filesystem::path> visible_entries(const std::filesystem::path& folder);

// What it says, for clients; null where there is none.
nlohmann::ordered_json certificate_json(const std::optional<Certificate>& certificate);

class Shelf {
 public:
  Shelf(Engine& engine, ShelfOptions options);

  // As the folders are now. What has not changed is not read again.
  std::vector<std::shared_ptr<const ModelOnShelf>> models();
  std::vector<AdapterOnShelf> adapters();
  // An empty name: the first. ApiErrors name "model", and "loras" where there is no such adapter.
  std::shared_ptr<const ModelOnShelf> model(const std::string& id);
  AdapterOnShelf adapter(const std::string& name);
  AdapterFit fit(const AdapterOnShelf& adapter, const ModelOnShelf& model);

  // An adapter of this name, in the folder that is the server's own. True where it is a new one;
  // one that is there is replaced only where that is wanted. ApiErrors say what is wrong with it.
  bool put_adapter(const std::string& name, const std::string& bytes, bool replace);
  void remove_adapter(const std::string& name);

  ModelSpec spec(const ModelOnShelf& model, const std::string& precision) const;
  const DeviceInfo& device() const { return device_; }
  const std::string& device_why() const { return device_why_; }
  const ShelfOptions& options() const { return options_; }

  // As clients see it.
  nlohmann::ordered_json to_json(const ModelOnShelf& model,
                                 const std::vector<std::string>& loaded) const;
  nlohmann::ordered_json to_json(const AdapterOnShelf& adapter);

 private:
  std::shared_ptr<const ModelOnShelf> read(const std::filesystem::path& path,
                                           const std::filesystem::path& base,
                                           const std::string& state) const;
  AdapterOnShelf read_adapter(const std::filesystem::path& path, const std::string& state) const;
  bool is_own(const AdapterOnShelf& adapter) const;

  ShelfOptions options_;
  DeviceInfo device_;
  std::string device_why_;
  std::mutex mutex_;
  // By path and the state of its files.
  std::map<std::string, std::shared_ptr<const ModelOnShelf>> known_;
  std::map<std::string, AdapterOnShelf> known_adapters_;
  std::map<std::string, AdapterFit> known_fits_;  // by the states of both
};

}  // namespace halftone
