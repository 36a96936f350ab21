#include "halftone/io/checkpoint.h"

#include <algorithm>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/io/conversion_notes.h"
#include "halftone/io/dialect_markers.h"
#include "halftone/io/json.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

// Shards lie beside or below their index; anything else is a mistake or an attack. Links are
// followed: download caches consist of them.
bool stays_inside(const fs::path& shard) {
  if (shard.empty() || shard.is_absolute()) return false;
  // The system would end the name there.
  if (shard.native().find('\0') != std::string::npos) return false;
  return std::none_of(shard.begin(), shard.end(),
                      [](const fs::path& part) { return part == ".."; });
}

struct FolderContent {
  std::vector<fs::path> indexes, tensors;
};

FolderContent list_folder(const fs::path& folder) {
  FolderContent content;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(folder, error)) {
    const std::string name = item.path().filename().string();
    if (is_folder(item.path())) continue;
    if (name.ends_with(kIndexSuffix)) content.indexes.push_back(item.path());
    if (name.ends_with(".safetensors")) content.tensors.push_back(item.path());
  }
  if (error) throw Error(ErrorCode::kIo, folder.string(), "{}", error.message());
  std::sort(content.indexes.begin(), content.indexes.end());
  std::sort(content.tensors.begin(), content.tensors.end());
  return content;
}

// Metadata that describes the tensors of its own file, so that of several files all of it holds.
constexpr const char* kDescriptions[] = {kQuantizationKey, kNotesKey, kComfyMetadataKey};

// Adds what `from` says to `into`; false where they say different things about the same.
bool merge_objects(nlohmann::json& into, const nlohmann::json& from) {
  if (!into.is_object() || !from.is_object()) return into == from;
  for (const auto& [key, value] : from.items()) {
    const auto [known, fresh] = into.emplace(key, value);
    if (!fresh && !merge_objects(*known, value)) return false;
  }
  return true;
}

}  // namespace

std::map<std::string, std::string> checkpoint_index(const nlohmann::json& json,
                                                    const std::string& where) {
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw Error(ErrorCode::kInvalidInput, where, "has no object 'weight_map'");
  }
  std::map<std::string, std::string> map;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    if (!shard.is_string()) {
      throw Error(ErrorCode::kInvalidInput, where, "tensor '{}': its shard is not a name",
                  printable(tensor));
    }
    const auto& file = shard.get_ref<const std::string&>();
    if (!stays_inside(file)) {
      throw Error(ErrorCode::kInvalidInput, where, "tensor '{}': shard '{}' is outside the folder",
                  printable(tensor), printable(file));
    }
    map.emplace(tensor, fs::path(file).lexically_normal().string());
  }
  return map;
}

bool Checkpoint::is_checkpoint_folder(const fs::path& folder) {
  const FolderContent content = list_folder(folder);
  return !content.indexes.empty() || !content.tensors.empty();
}

Checkpoint Checkpoint::open(const fs::path& path) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  if (path.string().ends_with(kIndexSuffix)) {
    checkpoint.open_index(path);
  } else if (is_folder(path)) {
    const FolderContent content = list_folder(path);
    if (content.indexes.size() == 1) {
      checkpoint.open_index(content.indexes[0]);
    } else if (content.indexes.empty() && content.tensors.size() == 1) {
      return open(content.tensors[0]);
    } else if (content.indexes.empty() && content.tensors.empty()) {
      throw Error(ErrorCode::kNotFound, path.string(), "holds no .safetensors file");
    } else {
      throw Error(ErrorCode::kInvalidInput, path.string(),
                  "holds {} indexes and {} .safetensors files; name the one to use",
                  content.indexes.size(), content.tensors.size());
    }
  } else {
    checkpoint.folder_ = path.parent_path();
    checkpoint.files_.push_back(std::make_unique<SafetensorsFile>(path));
    const SafetensorsFile& file = *checkpoint.files_[0];
    for (const TensorEntry& entry : file.tensors()) checkpoint.add(file, entry);
  }
  checkpoint.sort_items();
  checkpoint.merge_metadata();
  return checkpoint;
}

void Checkpoint::open_index(const fs::path& index) {
  const std::string where = index.string();
  folder_ = index.parent_path();
  const auto map = checkpoint_index(read_json_file(index), where);

  std::map<std::string, const SafetensorsFile*> shards;
  for (const auto& [tensor, shard] : map) {
    auto& file = shards[shard];
    if (file == nullptr) {
      const fs::path shard_path = folder_ / shard;
      if (!path_exists(shard_path)) {
        throw Error(ErrorCode::kNotFound, where, "tensor '{}': shard '{}' is missing",
                    printable(tensor), printable(shard));
      }
      files_.push_back(std::make_unique<SafetensorsFile>(shard_path));
      file = files_.back().get();
    }
    const TensorEntry* entry = file->find(tensor);
    if (entry == nullptr) {
      throw Error(ErrorCode::kNotFound, where, "tensor '{}' is not in shard '{}'",
                  printable(tensor), printable(shard));
    }
    add(*file, *entry);
  }
  for (const auto& [shard, file] : shards) {
    for (const TensorEntry& entry : file->tensors()) {
      const auto found = map.find(entry.name);
      if (found == map.end() || found->second != shard) unindexed_.push_back(entry.name);
    }
  }
}

void Checkpoint::add(const SafetensorsFile& file, const TensorEntry& entry) {
  items_.push_back({&file, &entry});
}

void Checkpoint::sort_items() {
  std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
    return natural_less(a.entry->name, b.entry->name);
  });
  for (size_t i = 0; i < items_.size(); ++i) by_name_[items_[i].entry->name] = i;
}

int64_t Checkpoint::tensor_bytes() const {
  int64_t sum = 0;
  for (const Item& item : items_) sum += item.entry->byte_size();
  return sum;
}

const Checkpoint::Item* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &items_[found->second];
}

Tensor Checkpoint::tensor(std::string_view name) const {
  const Item* item = find(name);
  if (item == nullptr) {
    throw Error(ErrorCode::kNotFound, path_.string(), "has no tensor '{}'", printable(name));
  }
  return item->file->tensor(*item->entry);
}

void Checkpoint::merge_metadata() {
  for (const auto& file : files_)
    metadata_.insert(file->metadata().begin(), file->metadata().end());
  for (const char* key : kDescriptions) {
    nlohmann::json merged;
    int sources = 0;
    for (const auto& file : files_) {
      const auto found = file->metadata().find(key);
      if (files_.size() == 1 || found == file->metadata().end()) continue;
      const std::string where = fmt::format("{}: metadata {}", file->path().string(), key);
      const nlohmann::json said = parse_json(found->second, where);
      if (sources++ == 0) merged = said;
      if (!merge_objects(merged, said)) {
        throw Error(ErrorCode::kInvalidInput, where, "contradicts that of another shard");
      }
    }
    if (sources > 1) metadata_[key] = json_text(merged, path_.string() + ": metadata " + key);
  }
}

}  // namespace halftone
