#include "halftone/tensor/tensor.h"

#include <algorithm>
#include <cstring>

#include "halftone/base/error.h"

namespace halftone {

Tensor Tensor::empty(DType dtype, const Shape& shape) {
  const auto bytes = shape.checked_bytes(dtype);
  if (!bytes) {
    throw Error(ErrorCode::kInvalidInput, "tensor", "shape {} of {} has no whole number of bytes",
                shape, name_of(dtype));
  }
  auto storage = Storage::allocate(*bytes);
  Storage* writable = storage.get();
  Tensor tensor(std::move(storage), 0, dtype, shape);
  tensor.writable_ = writable;
  return tensor;
}

Tensor Tensor::zeros(DType dtype, const Shape& shape) {
  Tensor tensor = empty(dtype, shape);
  if (tensor.byte_size() > 0) {
    std::memset(tensor.mutable_bytes().data(), 0, tensor.mutable_bytes().size());
  }
  return tensor;
}

Tensor::Tensor(std::shared_ptr<const Storage> storage, int64_t offset, DType dtype,
               const Shape& shape)
    : storage_(std::move(storage)), offset_(offset), dtype_(dtype), shape_(shape) {
  const auto bytes = shape.checked_bytes(dtype);
  HT_ASSERT(bytes.has_value() && offset >= 0);
  byte_size_ = *bytes;
  HT_ASSERT(offset + byte_size_ <= static_cast<int64_t>(storage_->size()));
  const auto address = reinterpret_cast<uintptr_t>(storage_->address()) + offset;
  HT_ASSERT(byte_size_ == 0 || address % alignment_of(dtype) == 0);
}

std::span<const std::byte> Tensor::bytes() const {
  if (!storage_) return {};
  return storage_->bytes().subspan(static_cast<size_t>(offset_), static_cast<size_t>(byte_size_));
}

std::span<std::byte> Tensor::mutable_bytes() {
  HT_ASSERT(writable_ != nullptr);
  return writable_->mutable_bytes().subspan(static_cast<size_t>(offset_),
                                            static_cast<size_t>(byte_size_));
}

Tensor Tensor::clone() const {
  Tensor copy = Tensor::empty(dtype_, shape_);
  std::copy(bytes().begin(), bytes().end(), copy.mutable_bytes().begin());
  return copy;
}

Tensor Tensor::as_channels_last() const {
  HT_ASSERT(shape_.rank() == 4);
  Tensor view = *this;
  view.channels_last_ = true;
  return view;
}

Tensor Tensor::reshape(const Shape& shape) const {
  HT_ASSERT(shape.checked_numel() == shape_.checked_numel() && !channels_last_);
  Tensor view = *this;
  view.shape_ = shape;
  return view;
}

Tensor Tensor::bitcast(DType dtype, const Shape& shape) const {
  HT_ASSERT(storage_ != nullptr && shape.checked_bytes(dtype) == byte_size_ && !channels_last_);
  Tensor view(storage_, offset_, dtype, shape);
  view.writable_ = writable_;
  return view;
}

std::optional<Tensor> Tensor::followed_by(const Tensor& next) const {
  const bool fits = storage_ != nullptr && storage_ == next.storage_ && dtype_ == next.dtype_ &&
                    offset_ + byte_size_ == next.offset_ && shape_.rank() >= 1 &&
                    shape_.rank() == next.shape_.rank();
  if (!fits) return std::nullopt;
  std::array<int64_t, Shape::kMaxRank> dims{};
  std::copy(shape_.dims().begin(), shape_.dims().end(), dims.begin());
  for (int i = 1; i < shape_.rank(); ++i) {
    if (dims[i] != next.shape_[i]) return std::nullopt;
  }
  dims[0] += next.shape_[0];
  Tensor both = *this;
  both.shape_ = Shape(std::span<const int64_t>(dims.data(), static_cast<size_t>(shape_.rank())));
  both.byte_size_ = byte_size_ + next.byte_size_;
  return both;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  HT_ASSERT(shape_.rank() >= 1 && 0 <= begin && begin <= end && end <= shape_[0]);
  std::array<int64_t, Shape::kMaxRank> dims{};
  std::copy(shape_.dims().begin(), shape_.dims().end(), dims.begin());
  dims[0] = end - begin;
  const int64_t row_bits = shape_[0] == 0 ? 0 : byte_size_ * 8 / shape_[0];
  HT_ASSERT(row_bits * begin % 8 == 0);  // a row of packed nibbles may end inside a byte
  Tensor view = *this;
  view.shape_ = Shape(std::span<const int64_t>(dims.data(), static_cast<size_t>(shape_.rank())));
  view.offset_ = offset_ + row_bits * begin / 8;
  view.byte_size_ = view.shape_.checked_bytes(dtype_).value();
  return view;
}

void Tensor::check_element_size(size_t size) const {
  HT_ASSERT(bits_of(dtype_) == static_cast<int>(size) * 8);
}

}  // namespace halftone
