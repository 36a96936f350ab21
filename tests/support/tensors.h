// Tensors for tests: reproducible random ones, and literal ones.
#pragma once

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <span>
#include <vector>

#include "halftone/base/random.h"
#include "halftone/numerics/bf16.h"
#include "halftone/tensor/tensor.h"

namespace halftone::test {

inline double uniform(uint64_t seed, uint64_t i) {
  return (philox_word({seed, 0x7E57}, i) + 0.5) * 0x1p-32;
}

// Box-Muller.
inline double gaussian(uint64_t seed, uint64_t i) {
  return std::sqrt(-2 * std::log(uniform(seed, 2 * i))) *
         std::cos(2 * M_PI * uniform(seed, 2 * i + 1));
}

inline Tensor f32_tensor(const Shape& shape, std::span<const float> values) {
  Tensor t = Tensor::empty(DType::kF32, shape);
  std::copy(values.begin(), values.end(), t.mutable_as<float>().begin());
  return t;
}
inline Tensor f32_tensor(const Shape& shape, std::initializer_list<float> values) {
  return f32_tensor(shape, std::span<const float>(values.begin(), values.size()));
}

inline Tensor bf16_tensor(const Shape& shape, std::span<const float> values) {
  Tensor t = Tensor::empty(DType::kBF16, shape);
  auto out = t.mutable_as<bf16>();
  for (size_t i = 0; i < values.size(); ++i) out[i] = to_bf16(values[i]);
  return t;
}

inline std::vector<float> gaussians(uint64_t seed, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(gaussian(seed, i));
  return values;
}

// Any bit patterns at all: NaN, Inf, subnormals, every exponent.
inline Tensor random_bits(DType dtype, const Shape& shape, uint64_t seed) {
  Tensor t = Tensor::empty(dtype, shape);
  auto bytes = t.mutable_bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(philox_word({seed, 0xB175}, i));
  }
  return t;
}

inline std::vector<uint8_t> bytes_of(const Tensor& t) {
  std::vector<uint8_t> out(t.bytes().size());
  if (!out.empty()) std::memcpy(out.data(), t.bytes().data(), out.size());
  return out;
}

}  // namespace halftone::test
