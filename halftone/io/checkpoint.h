// A checkpoint: one safetensors file, or a folder of shards with an index that says which tensor
// lies in which.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "halftone/io/safetensors_file.h"

namespace halftone {

class Checkpoint {
 public:
  struct Item {
    const SafetensorsFile* file;
    const TensorEntry* entry;
  };

  // A .safetensors file, a *.safetensors.index.json, or a folder that holds either. Every shard
  // is opened and checked: a missing shard, one outside the folder, a tensor that is not where the
  // index says, or shards whose metadata contradict each other are an Error.
  static Checkpoint open(const std::filesystem::path& path);
  // Whether open would find something in this folder.
  static bool is_checkpoint_folder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  // A file's name as an index in the checkpoint's folder has it: "w.safetensors",
  // "b/w.safetensors".
  std::filesystem::path shard_name(const SafetensorsFile& file) const {
    return file.path().lexically_relative(folder_);
  }
  const std::vector<Item>& items() const { return items_; }  // in natural order of names
  int64_t tensor_bytes() const;

  const Item* find(std::string_view name) const;
  Tensor tensor(std::string_view name) const;  // an Error where there is none
  // Of all files. What files say about their own tensors is put together, in other keys the first
  // one wins.
  const Metadata& metadata() const { return metadata_; }

  // Tensors that lie in a shard although the index does not name them. They are not items.
  const std::vector<std::string>& unindexed() const { return unindexed_; }

 private:
  void add(const SafetensorsFile& file, const TensorEntry& entry);
  void open_index(const std::filesystem::path& index);
  void sort_items();
  void merge_metadata();

  std::filesystem::path path_;
  std::filesystem::path folder_;  // that shards are named in
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Item> items_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::vector<std::string> unindexed_;
  Metadata metadata_;
};

// Tensor name -> shard file name of an index, in the order of the index's keys. Names are in normal
// form, so that "./w" and "w" are one shard.
std::map<std::string, std::string> checkpoint_index(const nlohmann::json& json,
                                                    const std::string& where);

}  // namespace halftone
