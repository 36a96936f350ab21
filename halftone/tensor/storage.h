// Owns the bytes behind tensors: memory of its own, of a device's, or a read-only file mapping.
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
  // A whole file, read-only and shared with the page cache (mapped_file.h).
  static std::shared_ptr<const Storage> map_file(const std::filesystem::path& path);

  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Both assert that the CPU can read it, the second also that the storage is not a mapping.
  std::span<const std::byte> bytes() const;
  std::span<std::byte> mutable_bytes();
  // Where it starts on its device: an address that only that device may follow.
  std::byte* address() const { return data_; }
  size_t size() const { return size_; }
  bool mapped() const { return mapped_; }
  Device device() const { return device_; }
  // An Error that names the file where it lost a part since it was mapped: zeros were read there.
  virtual void check_intact() const {}

 protected:
  Storage(std::byte* data, size_t size, bool mapped, Device device = {})
      : data_(data), size_(size), mapped_(mapped), device_(device) {}

  std::byte* data_;
  size_t size_;
  bool mapped_;
  Device device_;
};

}  // namespace halftone
