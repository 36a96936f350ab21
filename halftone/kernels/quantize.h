// Quantize and dequantize whole tensors with the kernels of a table.
#pragma once

#include <optional>

#include "halftone/kernels/kernels.h"
#include "halftone/tensor/quantized_tensor.h"
#include "halftone/tensor/tensor.h"

namespace halftone {

struct QuantizeOptions {
  int axis = 1;                         // contraction: 1 along rows, 0 along columns
  std::optional<float> static_scale;    // FP8's scale or NVFP4's global scale
  std::optional<PhiloxKey> stochastic;  // for gradients; otherwise to nearest even
};

// x is a matrix of F32, BF16 or F16. Anything else, a format that does not fit together or a
// static scale where the format has none is an Error.
QuantizedTensor quantize(const Kernels& kernels, const Tensor& x, const Format& format,
                         const QuantizeOptions& options, Stream stream);

// To F32 or BF16, in the shape and orientation of the tensor that was quantized.
Tensor dequantize(const Kernels& kernels, const QuantizedTensor& q, DType dtype, Stream stream);

// Arguments that dequantize the stored rows of q from first_row on into y (axis 1 only unless
// first_row is 0).
DequantizeArgs dequantize_args(const QuantizedTensor& q, int64_t first_row, const Matrix& y);

float amax(const Kernels& kernels, const Tensor& x, Stream stream);

}  // namespace halftone
