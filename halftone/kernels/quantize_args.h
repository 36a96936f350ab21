// The contracts of amax, quantize and dequantize.
#pragma once

#include <cstdint>
#include <optional>

#include "halftone/base/random.h"
#include "halftone/numerics/format.h"
#include "halftone/tensor/dtype.h"

namespace halftone {

struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;  // F32, BF16 or F16
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next
};

struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;  // F32 or BF16
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
};

// *amax = the largest magnitude: 0 if x is empty, NaN if x holds one, otherwise Inf if it does.
struct AmaxArgs {
  ConstMatrix x;
  float* amax = nullptr;
};

// Quantizes x along its rows or, with `transpose`, the transpose of x along its rows. R x C is the
// orientation that is stored.
struct QuantizeArgs {
  ConstMatrix x;
  bool transpose = false;
  Format format;
  uint8_t* codes = nullptr;  // [R, format.code_bytes(C)]
  // F32 [1] or [R]; bytes [R, format.scales_per_row(C)], or the tiles of those where
  // format.swizzled, whose padding along rows is written as zero.
  void* scales = nullptr;
  float* global_scale = nullptr;  // [1], NVFP4 only
  // Calibrated: the scale of the tensor or of every row, or NVFP4's global scale. Without it, taken
  // from amax.
  std::optional<float> static_scale;
  // Stochastic rounding; element (r, c) uses word r * C + c of this key's sequence.
  std::optional<PhiloxKey> stochastic;
  // F32 [columns of x]: x is multiplied by these first. By row, not transposed; the CUDA table
  // only.
  const float* column_factors = nullptr;
};

// y = the values that codes and scales stand for, in the orientation that was quantized.
// One rounding: code * scale, or (code * block scale, exact) * global scale, then to y's dtype.
struct DequantizeArgs {
  Format format;
  const uint8_t* codes = nullptr;
  const void* scales = nullptr;
  const float* global_scale = nullptr;
  bool transpose = false;
  Matrix y;
};

}  // namespace halftone
