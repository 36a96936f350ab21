// Scales that tools store as F32, and now and then in 16 bits.
#pragma once

#include "halftone/numerics/bf16.h"
#include "halftone/tensor/tensor.h"

namespace halftone {

// The same values in F32, exactly, of a tensor of F32, BF16 or F16.
inline Tensor as_f32(const Tensor& x) {
  if (x.dtype() == DType::kF32) return x;
  Tensor y = Tensor::empty(DType::kF32, x.shape());
  const auto out = y.mutable_as<float>();
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = x.dtype() == DType::kBF16 ? to_float(x.as<bf16>()[i]) : to_float(x.as<fp16>()[i]);
  }
  return y;
}

}  // namespace halftone
