// Owns the bytes behind tensors: memory of its own, or a read-only file mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "halftone/tensor/device.h"

namespace halftone {

class Storage {
 public:
  static constexpr size_t kAlignment = 64;  // a cache line and an AVX-512 vector

  // Uninitialized memory of this size; an Error where there is not enough.
  static std::shared_ptr<Storage> allocate(int64_t bytes);
  // A whole file, read-only and shared with the page cache.
  static std::shared_ptr<const Storage> map_file(const std::filesystem::path& path);

  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::span<std::byte> mutable_bytes();  // asserts that the storage is not a mapping
  bool mapped() const { return mapped_; }
  Device device() const { return {}; }

 protected:
  Storage(std::byte* data, size_t size, bool mapped) : data_(data), size_(size), mapped_(mapped) {}

  std::byte* data_;
  size_t size_;
  bool mapped_;
};

}  // namespace halftone
