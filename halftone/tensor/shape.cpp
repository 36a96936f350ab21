#include "halftone/tensor/shape.h"

#include <algorithm>

#include "halftone/base/error.h"

namespace halftone {

Shape::Shape(std::span<const int64_t> dims) {
  HT_ASSERT(dims.size() <= kMaxRank);
  for (const int64_t d : dims) {
    HT_ASSERT(d >= 0);
    dims_[rank_++] = d;
  }
}

int64_t Shape::operator[](int i) const {
  if (i < 0) i += rank_;
  HT_ASSERT(i >= 0 && i < rank_);
  return dims_[i];
}

std::optional<int64_t> Shape::checked_numel() const {
  int64_t product = 1;
  for (const int64_t d : dims()) {
    if (__builtin_mul_overflow(product, d, &product)) return std::nullopt;
  }
  return product;
}

int64_t Shape::numel() const {
  const auto n = checked_numel();
  HT_ASSERT(n.has_value());
  return *n;
}

std::optional<int64_t> Shape::checked_bytes(DType dtype) const {
  const auto n = checked_numel();
  int64_t bits = 0;
  if (!n || __builtin_mul_overflow(*n, static_cast<int64_t>(bits_of(dtype)), &bits)) {
    return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::string Shape::str() const { return fmt::format("[{}]", fmt::join(dims(), ", ")); }

bool Shape::operator==(const Shape& other) const {
  return std::ranges::equal(dims(), other.dims());
}

}  // namespace halftone
