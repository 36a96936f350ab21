// The dimensions of a tensor, kept inline; products are checked for overflow.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "halftone/tensor/dtype.h"

namespace halftone {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;                          // rank 0: a scalar, one element
  Shape(std::initializer_list<int64_t> dims)  // NOLINT: Shape{2, 3} is meant to convert
      : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int i) const;  // negative counts from the end
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }

  // Number of elements; nothing if it overflows int64.
  std::optional<int64_t> checked_numel() const;
  int64_t numel() const;  // asserts that it does not overflow

  // Bytes of this many elements packed; nothing on overflow or if the last byte would be shared.
  std::optional<int64_t> checked_bytes(DType dtype) const;

  std::string str() const;  // "[2, 3]"
  bool operator==(const Shape& other) const;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

}  // namespace halftone

template <>
struct fmt::formatter<halftone::Shape> : fmt::formatter<std::string> {
  auto format(const halftone::Shape& shape, format_context& context) const {
    return fmt::formatter<std::string>::format(shape.str(), context);
  }
};
