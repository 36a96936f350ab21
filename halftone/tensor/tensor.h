// A handle to a contiguous, row-major array: dtype, shape and a range of a shared Storage.
// Copying a Tensor copies the handle. Views share the storage and keep it alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "halftone/tensor/dtype.h"
#include "halftone/tensor/shape.h"
#include "halftone/tensor/storage.h"

namespace halftone {

class Tensor {
 public:
  Tensor() = default;
  static Tensor empty(DType dtype, const Shape& shape);  // uninitialized
  static Tensor zeros(DType dtype, const Shape& shape);
  // A view of storage from byte `offset` on; asserts that it fits and is aligned for its dtype.
  Tensor(std::shared_ptr<const Storage> storage, int64_t offset, DType dtype, const Shape& shape);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t numel() const { return shape_.numel(); }
  int64_t byte_size() const { return byte_size_; }
  bool defined() const { return storage_ != nullptr; }
  bool mapped() const { return storage_ && storage_->mapped(); }
  // As Storage::check_intact.
  void check_intact() const {
    if (storage_) storage_->check_intact();
  }

  std::span<const std::byte> bytes() const;  // asserts that the CPU can read them
  // Where they start on the tensor's device.
  const std::byte* address() const { return storage_ ? storage_->address() + offset_ : nullptr; }
  Device device() const { return storage_ ? storage_->device() : Device{}; }
  std::span<std::byte> mutable_bytes();  // asserts that the memory is our own, not a file's
  const Storage* storage() const { return storage_.get(); }

  // The elements as T, whose size must be that of the dtype.
  template <class T>
  std::span<const T> as() const {
    check_element_size(sizeof(T));
    return {reinterpret_cast<const T*>(bytes().data()), static_cast<size_t>(numel())};
  }
  template <class T>
  std::span<T> mutable_as() {
    check_element_size(sizeof(T));
    return {reinterpret_cast<T*>(mutable_bytes().data()), static_cast<size_t>(numel())};
  }

  Tensor clone()
      const;  // the same elements in memory of its own; the CPU must be able to read them
  Tensor reshape(const Shape& shape) const;       // same elements, same order
  Tensor rows(int64_t begin, int64_t end) const;  // [begin, end) of the first dimension
  // This and `next` as one tensor, along the first dimension; nothing where it does not begin where
  // this one ends, in the same memory, or rows differ.
  std::optional<Tensor> followed_by(const Tensor& next) const;
  // The kernel of a convolution [O, C, kh, kw] whose elements lie as [O, kh, kw, C] here.
  bool channels_last() const { return channels_last_; }
  Tensor as_channels_last() const;  // the same bytes, which lie so
  // The same bytes under another type and shape, which must need as many and be aligned for it.
  Tensor bitcast(DType dtype, const Shape& shape) const;

 private:
  void check_element_size(size_t size) const;

  std::shared_ptr<const Storage> storage_;
  Storage* writable_ = nullptr;  // storage_ when it is our own memory
  int64_t offset_ = 0;
  int64_t byte_size_ = 0;
  DType dtype_ = DType::kF32;
  bool channels_last_ = false;
  Shape shape_{0};
};

}  // namespace halftone
