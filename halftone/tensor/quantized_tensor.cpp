#include "halftone/tensor/quantized_tensor.h"

#include "halftone/base/error.h"
#include "halftone/numerics/swizzle.h"

namespace halftone {

DType code_dtype(const Format& format) {
  switch (format.element) {
    case ElementType::kE4M3:
      return DType::kF8E4M3;
    case ElementType::kE5M2:
      return DType::kF8E5M2;
    case ElementType::kE2M1:
      return DType::kU8;
    case ElementType::kBF16:
      return DType::kBF16;
    case ElementType::kF32:
      break;
  }
  return DType::kF32;
}

DType scale_dtype(const Format& format) {
  switch (format.scale) {
    case ScaleType::kE8M0:
      return DType::kF8E8M0;
    case ScaleType::kE4M3:
      return DType::kF8E4M3;
    case ScaleType::kNone:
    case ScaleType::kF32:
      break;
  }
  return DType::kF32;
}

Shape scale_shape(const Format& format, int64_t rows, int64_t cols) {
  if (format.span == ScaleSpan::kTensor) return {1};
  return {rows, format.scales_per_row(cols)};
}

QuantizedLayout quantized_layout(const Format& format, int64_t rows, int64_t cols, int64_t items) {
  constexpr int64_t kAlignment = Storage::kAlignment;
  const auto aligned = [](int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
  if (format.static_scale) items = 1;
  const int64_t across = format.scales_per_row(cols);
  const int64_t scales = format.span == ScaleSpan::kTensor ? items
                         : format.swizzled                 ? swizzled_scale_bytes(rows, across)
                                                           : rows * across;
  QuantizedLayout layout;
  layout.scales = aligned(rows * format.code_bytes(cols));
  layout.global_scale = layout.scales + aligned(scales * format.scale_bytes());
  layout.bytes = layout.global_scale + (format.global_scale ? aligned(items * 4) : 0);
  return layout;
}

QuantizedTensor QuantizedTensor::empty(const Format& format, const Shape& shape, int axis) {
  HT_ASSERT(format.quantized() && shape.rank() == 2 && (axis == 0 || axis == 1));
  QuantizedTensor q{format, shape, axis, {}, {}, {}};
  const int64_t rows = q.stored_rows(), cols = q.stored_cols();
  q.codes = Tensor::empty(code_dtype(format), {rows, format.code_bytes(cols)});
  q.scales = Tensor::empty(scale_dtype(format), scale_shape(format, rows, cols));
  if (format.global_scale) q.global_scale = Tensor::empty(DType::kF32, {1});
  return q;
}

}  // namespace halftone
