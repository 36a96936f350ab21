// A matrix in a low-precision format: codes, scales and, in NVFP4, the global scale, as one value.
#pragma once

#include "halftone/numerics/format.h"
#include "halftone/tensor/tensor.h"

namespace halftone {

// Codes are stored so that the contraction runs along memory, which is what every FP8 and FP4
// GEMM wants: for axis 1 as the matrix lies, for axis 0 as its transpose. With R x C the stored
// orientation:
//   codes         F8_E4M3 or F8_E5M2 [R, C]; U8 [R, ceil(C/2)] in NVFP4, low nibble first
//   scales        F32 [1] per tensor, F32 [R, 1] per row; F8_E8M0 or F8_E4M3 [R, ceil(C/block)]
//   global_scale  F32 [1] in NVFP4, otherwise undefined
struct QuantizedTensor {
  Format format;
  Shape shape;   // of the matrix that was quantized
  int axis = 1;  // the contraction
  Tensor codes;
  Tensor scales;
  Tensor global_scale;

  int64_t stored_rows() const { return axis == 1 ? shape[0] : shape[1]; }
  int64_t stored_cols() const { return axis == 1 ? shape[1] : shape[0]; }
  int64_t byte_size() const {
    return codes.byte_size() + scales.byte_size() + global_scale.byte_size();
  }

  // All parts allocated, none filled.
  static QuantizedTensor empty(const Format& format, const Shape& shape, int axis = 1);
};

// Where the parts of a quantized matrix lie in one piece of memory: codes first.
struct QuantizedLayout {
  int64_t scales = 0;        // offset in bytes
  int64_t global_scale = 0;  // offset in bytes
  int64_t bytes = 0;
};
// `items` is how many parts of the rows have a tensor scale or a global scale of their own, unless
// it is static.
QuantizedLayout quantized_layout(const Format& format, int64_t rows, int64_t cols, int64_t items);

DType code_dtype(const Format& format);
DType scale_dtype(const Format& format);
// Of the scales of [rows, cols] as stored.
Shape scale_shape(const Format& format, int64_t rows, int64_t cols);

}  // namespace halftone
