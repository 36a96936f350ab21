// A checkpoint: one safetensors file, or a folder of shards with an index that says which tensor
// lies in which.
#pragma once

#include <filesystem>
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
  // is opened and checked: a missing shard, one outside the folder, or a tensor that is not where
  // the index says is an Error.
  static Checkpoint open(const std::filesystem::path& path);
  // Whether open would find something in this folder.
  static bool is_checkpoint_folder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  const std::vector<Item>& items() const { return items_; }  // in natural order of names
  int64_t tensor_bytes() const;

  const Item* find(std::string_view name) const;
  Tensor tensor(std::string_view name) const;  // an Error where there is none
  Metadata metadata() const;                   // of all files; the first one wins

  // Tensors that lie in a shard although the index does not name them. They are not items.
  const std::vector<std::string>& unindexed() const { return unindexed_; }

 private:
  void add(const SafetensorsFile& file, const TensorEntry& entry);
  void open_index(const std::filesystem::path& index);
  void sort_items();

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Item> items_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::vector<std::string> unindexed_;
};

// Tensor name -> shard file name of an index, in the order of the index's keys.
std::map<std::string, std::string> checkpoint_index(const nlohmann::json& json,
                                                    const std::string& where);

}  // namespace halftone
