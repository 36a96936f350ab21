// Values of a tensor in high precision (F32, BF16, F16) as floats, exactly.
#pragma once

#include <algorithm>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/numerics/bf16.h"
#include "halftone/tensor/tensor.h"

namespace halftone {

inline std::vector<float> float_values(const Tensor& x) {
  HT_ASSERT(is_high_precision(x.dtype()));
  std::vector<float> values(static_cast<size_t>(x.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = x.dtype() == DType::kF32    ? x.as<float>()[i]
                : x.dtype() == DType::kBF16 ? to_float(x.as<bf16>()[i])
                                            : to_float(x.as<fp16>()[i]);
  }
  return values;
}

// The tensor itself where it is of floats.
inline Tensor as_f32(const Tensor& x) {
  if (x.dtype() == DType::kF32) return x;
  const std::vector<float> values = float_values(x);
  Tensor y = Tensor::empty(DType::kF32, x.shape());
  std::copy(values.begin(), values.end(), y.mutable_as<float>().begin());
  return y;
}

// Rounded to nearest even.
inline Tensor as_bf16(const Tensor& x) {
  if (x.dtype() == DType::kBF16) return x;
  Tensor y = Tensor::empty(DType::kBF16, x.shape());
  std::ranges::transform(float_values(x), y.mutable_as<bf16>().begin(), to_bf16);
  return y;
}

}  // namespace halftone
