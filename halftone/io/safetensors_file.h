// A safetensors file mapped into memory. Tensors are views of the mapping: nothing is copied.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>

#include "halftone/io/safetensors_header.h"
#include "halftone/tensor/tensor.h"

namespace halftone {

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  int64_t file_size() const { return static_cast<int64_t>(storage_->bytes().size()); }
  const Metadata& metadata() const { return header_.metadata; }
  std::span<const TensorEntry> tensors() const { return header_.tensors; }

  const TensorEntry* find(std::string_view name) const;  // null if there is none
  const TensorEntry& at(std::string_view name) const;    // an Error that names file and tensor

  std::span<const std::byte> all_bytes() const { return storage_->bytes(); }  // header and data
  // The bytes as they lie in the file, whatever their alignment.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;
  // A view, or a copy where a careless writer left the data unaligned for its dtype.
  Tensor tensor(const TensorEntry& entry) const;
  Tensor tensor(std::string_view name) const { return tensor(at(name)); }
  void check_intact() const { storage_->check_intact(); }  // since it was opened

 private:
  std::filesystem::path path_;
  std::shared_ptr<const Storage> storage_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> index_;  // keys live in header_
};

}  // namespace halftone
