// Loading a stored weight into canonical layout.
#include <algorithm>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/io/stored_weights.h"
#include "halftone/numerics/swizzle.h"
#include "halftone/tensor/float_values.h"

namespace halftone {
namespace {

Tensor scalar(float value) {
  Tensor tensor = Tensor::empty(DType::kF32, {1});
  tensor.mutable_as<float>()[0] = value;
  return tensor;
}

// The top left [rows, bytes] of a matrix of bytes, with nibbles in canonical order.
Tensor crop_codes(const Tensor& stored, int64_t rows, int64_t cols, const StoredWeight& weight) {
  const int64_t bytes = weight.format.code_bytes(cols), across = stored.shape()[1];
  if (bytes == across && !weight.high_nibble_first) return stored.rows(0, rows);
  Tensor out = Tensor::empty(stored.dtype(), {rows, bytes});
  const auto* from = reinterpret_cast<const uint8_t*>(stored.bytes().data());
  auto* to = reinterpret_cast<uint8_t*>(out.mutable_bytes().data());
  for (int64_t r = 0; r < rows; ++r, from += across, to += bytes) {
    if (weight.high_nibble_first) {
      for (int64_t i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(from[i] << 4 | from[i] >> 4);
    } else {
      std::copy_n(from, bytes, to);
    }
    // What would follow an odd last value is padding.
    if (weight.format.element == ElementType::kE2M1 && cols % 2 != 0) to[bytes - 1] &= 0x0F;
  }
  return out;
}

Tensor crop_scales(const Tensor& stored, int64_t rows, int64_t cols, const StoredWeight& weight) {
  const Format& f = weight.format;
  const DType dtype = scale_dtype(f);
  const int64_t stored_rows = weight.padded[0];
  const int64_t across = f.scales_per_row(weight.padded[1]), wanted = f.scales_per_row(cols);
  if (!weight.swizzled) {
    const Tensor linear = stored.bitcast(dtype, {stored_rows, across});
    if (wanted == across) return linear.rows(0, rows);
  }
  Tensor out = Tensor::empty(dtype, {rows, wanted});
  const auto* from = reinterpret_cast<const uint8_t*>(stored.bytes().data());
  auto* to = reinterpret_cast<uint8_t*>(out.mutable_bytes().data());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < wanted; ++c) {
      const int64_t at = weight.swizzled ? swizzled_scale_offset(r, c, across) : r * across + c;
      to[r * wanted + c] = from[at];
    }
  }
  return out;
}

}  // namespace

bool could_be(const StoredWeight& weight, const Shape& shape) {
  if (shape == weight.shape) return true;
  if (shape.rank() != 2) return false;
  for (int i = 0; i < 2; ++i) {
    const int64_t up = (shape[i] + weight.padding - 1) / weight.padding * weight.padding;
    if (shape[i] != weight.padded[i] && up != weight.padded[i]) return false;
  }
  // Where the file tells the shape, it is no other.
  return weight.shape == weight.padded;
}

float stored_global_scale(const Checkpoint& checkpoint, const StoredWeight& weight) {
  if (weight.exact_global_scale) return *weight.exact_global_scale;
  if (weight.global_scale.empty()) return 1;
  const float stored = as_f32(checkpoint.tensor(weight.global_scale)).reshape({1}).as<float>()[0];
  return weight.reciprocal ? 1.0f / stored : stored;
}

QuantizedTensor load_stored(const Checkpoint& checkpoint, const StoredWeight& weight) {
  return load_stored(checkpoint, weight, weight.shape);
}

QuantizedTensor load_stored(const Checkpoint& checkpoint, const StoredWeight& weight,
                            const Shape& shape) {
  HT_ASSERT(could_be(weight, shape));
  const Format& f = weight.format;
  const int64_t rows = shape[0], cols = shape[1];
  QuantizedTensor q{f, shape, 1, {}, {}, {}};
  const Tensor codes =
      checkpoint.tensor(weight.codes)
          .bitcast(code_dtype(f), {weight.padded[0], f.code_bytes(weight.padded[1])});
  q.codes = crop_codes(codes, rows, cols, weight);
  if (weight.scales.empty()) {
    q.scales = scalar(1);
  } else if (f.span == ScaleSpan::kBlock) {
    q.scales = crop_scales(checkpoint.tensor(weight.scales), rows, cols, weight);
  } else {
    q.scales = as_f32(checkpoint.tensor(weight.scales)).reshape(scale_shape(f, rows, cols));
  }
  if (!f.global_scale) return q;
  const bool as_it_is = !weight.global_scale.empty() && !weight.reciprocal;
  q.global_scale = as_it_is ? as_f32(checkpoint.tensor(weight.global_scale)).reshape({1})
                            : scalar(stored_global_scale(checkpoint, weight));
  return q;
}

}  // namespace halftone
