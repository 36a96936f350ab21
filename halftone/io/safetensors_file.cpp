#include "halftone/io/safetensors_file.h"

#include <cstring>

#include "halftone/base/error.h"

namespace halftone {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path),
      storage_(Storage::map_file(path)),
      header_(parse_safetensors_header(storage_->bytes(), path.string())) {
  index_.reserve(header_.tensors.size());
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  const TensorEntry* entry = find(name);
  if (entry == nullptr) {
    throw Error(ErrorCode::kNotFound, path_.string(), "has no tensor '{}'", printable(name));
  }
  return *entry;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return storage_->bytes().subspan(static_cast<size_t>(header_.data_offset + entry.begin),
                                   static_cast<size_t>(entry.byte_size()));
}

Tensor SafetensorsFile::tensor(const TensorEntry& entry) const {
  const auto source = bytes(entry);
  const auto address = reinterpret_cast<uintptr_t>(source.data());
  if (source.empty() || address % static_cast<uintptr_t>(alignment_of(entry.dtype)) == 0) {
    return {storage_, header_.data_offset + entry.begin, entry.dtype, entry.shape};
  }
  Tensor copy = Tensor::empty(entry.dtype, entry.shape);
  std::memcpy(copy.mutable_bytes().data(), source.data(), source.size());
  return copy;
}

}  // namespace halftone
