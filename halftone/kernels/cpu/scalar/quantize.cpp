// The reference: one value at a time, straight from the rules in numerics/. Single-threaded.
#include <algorithm>
#include <array>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/kernels/cpu/scalar/reference.h"
#include "halftone/numerics/minifloat.h"
#include "halftone/numerics/scale_rules.h"

namespace halftone {
namespace {

float load(const ConstMatrix& x, int64_t r, int64_t c) {
  const int64_t i = r * x.stride + c;
  switch (x.dtype) {
    case DType::kBF16:
      return to_float(static_cast<const bf16*>(x.data)[i]);
    case DType::kF16:
      return to_float(static_cast<const fp16*>(x.data)[i]);
    default:
      return static_cast<const float*>(x.data)[i];
  }
}

void store(const Matrix& y, int64_t r, int64_t c, float value) {
  const int64_t i = r * y.stride + c;
  if (y.dtype == DType::kBF16) {
    static_cast<bf16*>(y.data)[i] = to_bf16(value);
  } else {
    static_cast<float*>(y.data)[i] = value;
  }
}

// The larger magnitude; comparing bits orders NaN above Inf above every number.
float larger(float amax, float x) {
  return bit_cast<float>(std::max(magnitude_bits(amax), magnitude_bits(x)));
}

uint8_t encode_element(ElementType element, float x, const uint32_t* random) {
  switch (element) {
    case ElementType::kE4M3:
      return random ? encode_stochastic<E4M3>(x, *random) : encode<E4M3>(x);
    case ElementType::kE5M2:
      return random ? encode_stochastic<E5M2>(x, *random) : encode<E5M2>(x);
    default:
      return random ? encode_stochastic<E2M1>(x, *random) : encode<E2M1>(x);
  }
}

float decode_element(ElementType element, uint8_t code) {
  switch (element) {
    case ElementType::kE4M3:
      return decode<E4M3>(code);
    case ElementType::kE5M2:
      return decode<E5M2>(code);
    default:
      return decode<E2M1>(code);
  }
}

// Quantizes the R x C orientation that is stored.
class Quantizer {
 public:
  explicit Quantizer(const QuantizeArgs& args)
      : a_(args),
        rows_(args.transpose ? args.x.cols : args.x.rows),
        cols_(args.transpose ? args.x.rows : args.x.cols) {}

  void run() {
    switch (a_.format.span) {
      case ScaleSpan::kTensor:
        return per_tensor();
      case ScaleSpan::kRow:
        return per_row();
      case ScaleSpan::kBlock:
        return a_.format.global_scale ? nvfp4_blocks() : mx_blocks();
      case ScaleSpan::kNone:
        break;
    }
  }

 private:
  float at(int64_t r, int64_t c) const {
    return a_.transpose ? load(a_.x, c, r) : load(a_.x, r, c);
  }

  // Over rows [r0, r1) and columns [c0, c1).
  float amax(int64_t r0, int64_t r1, int64_t c0, int64_t c1) const {
    float result = 0.0f;
    for (int64_t r = r0; r < r1; ++r) {
      for (int64_t c = c0; c < c1; ++c) result = larger(result, at(r, c));
    }
    return result;
  }

  // Columns [c0, c1) of row r, each multiplied by `reciprocal` and rounded.
  void write(int64_t r, int64_t c0, int64_t c1, float reciprocal) {
    uint8_t* row = a_.codes + r * a_.format.code_bytes(cols_);
    for (int64_t c = c0; c < c1; ++c) {
      uint32_t random = 0;
      if (a_.stochastic) random = philox_word(*a_.stochastic, static_cast<uint64_t>(r * cols_ + c));
      const uint8_t code = encode_element(a_.format.element, at(r, c) * reciprocal,
                                          a_.stochastic ? &random : nullptr);
      if (a_.format.element != ElementType::kE2M1) {
        row[c] = code;
      } else if (c % 2 == 0) {
        row[c / 2] = pack_e2m1(code, 0);
      } else {
        row[c / 2] = pack_e2m1(row[c / 2], code);
      }
    }
  }

  void per_tensor() {
    const float scale = a_.static_scale
                            ? *a_.static_scale
                            : amax_scale(amax(0, rows_, 0, cols_), a_.format.element_max());
    static_cast<float*>(a_.scales)[0] = scale;
    for (int64_t r = 0; r < rows_; ++r) write(r, 0, cols_, 1.0f / scale);
  }

  void per_row() {
    for (int64_t r = 0; r < rows_; ++r) {
      const float scale = a_.static_scale
                              ? *a_.static_scale
                              : amax_scale(amax(r, r + 1, 0, cols_), a_.format.element_max());
      static_cast<float*>(a_.scales)[r] = scale;
      write(r, 0, cols_, 1.0f / scale);
    }
  }

  void mx_blocks() {
    const int64_t blocks = a_.format.scales_per_row(cols_);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t c0 = b * 32, c1 = std::min(c0 + 32, cols_);
        const float largest = amax(r, r + 1, c0, c1);
        const uint8_t scale = a_.format.element == ElementType::kE4M3
                                  ? mx_scale<E4M3>(largest, a_.format.rounding)
                                  : mx_scale<E5M2>(largest, a_.format.rounding);
        static_cast<uint8_t*>(a_.scales)[r * blocks + b] = scale;
        write(r, c0, c1, reciprocal_e8m0(scale));
      }
    }
  }

  void nvfp4_blocks() {
    const Format& f = a_.format;
    const float g = a_.static_scale ? *a_.static_scale
                                    : nvfp4_global_scale(amax(0, rows_, 0, cols_),
                                                         f.four_over_six ? kFourOverSixMaxBlockScale
                                                                         : kNvfp4MaxBlockScale);
    *a_.global_scale = g;
    const int64_t blocks = f.scales_per_row(cols_);
    for (int64_t r0 = 0; r0 < rows_; r0 += f.tile_rows) {
      const int64_t r1 = std::min(r0 + f.tile_rows, rows_);
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t c0 = b * 16, c1 = std::min(c0 + 16, cols_);
        const float largest = amax(r0, r1, c0, c1);
        uint8_t scale = nvfp4_block_scale(largest, 6.0f, g, f.min_block_scale);
        if (f.four_over_six) {
          const uint8_t four = nvfp4_block_scale(largest, 4.0f, g, f.min_block_scale);
          if (squared_error(r0, c0, c1, four, g) < squared_error(r0, c0, c1, scale, g))
            scale = four;
        }
        for (int64_t r = r0; r < r1; ++r) {
          static_cast<uint8_t*>(a_.scales)[r * blocks + b] = scale;
          write(r, c0, c1, nvfp4_reciprocal(decode<E4M3>(scale), g));
        }
      }
    }
  }

  // Of one block rounded to nearest under a scale. The sum is a binary tree over 16 places, i with
  // i + 8, then i + 4, and so on: the order in which vectors of any width fold.
  float squared_error(int64_t r, int64_t c0, int64_t c1, uint8_t block_scale, float g) const {
    const float scale = decode<E4M3>(block_scale) * g;
    const float reciprocal = nvfp4_reciprocal(decode<E4M3>(block_scale), g);
    std::array<float, 16> sum{};
    for (int64_t c = c0; c < c1; ++c) {
      const float x = at(r, c);
      const float difference = x - decode<E2M1>(encode<E2M1>(x * reciprocal)) * scale;
      sum[c - c0] = difference * difference;
    }
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
    }
    return sum[0];
  }

  const QuantizeArgs& a_;
  int64_t rows_, cols_;
};

void scalar_dequantize(const DequantizeArgs& a, Stream) {
  const int64_t rows = a.transpose ? a.y.cols : a.y.rows;
  const int64_t cols = a.transpose ? a.y.rows : a.y.cols;
  const Format& f = a.format;
  const int64_t scales_per_row = f.scales_per_row(cols);
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* row = a.codes + r * f.code_bytes(cols);
    for (int64_t c = 0; c < cols; ++c) {
      const bool packed = f.element == ElementType::kE2M1;
      const uint8_t code =
          packed ? static_cast<uint8_t>((row[c / 2] >> (c % 2 * 4)) & 0xF) : row[c];
      float value = decode_element(f.element, code);
      if (f.span == ScaleSpan::kBlock) {
        const uint8_t scale =
            static_cast<const uint8_t*>(a.scales)[r * scales_per_row + c / f.block];
        value *= f.scale == ScaleType::kE8M0 ? decode_e8m0(scale) : decode<E4M3>(scale);
        if (f.global_scale) value *= *a.global_scale;
      } else {
        value *= static_cast<const float*>(a.scales)[f.span == ScaleSpan::kRow ? r : 0];
      }
      a.transpose ? store(a.y, c, r, value) : store(a.y, r, c, value);
    }
  }
}

void scalar_amax(const AmaxArgs& a, Stream) {
  float result = 0.0f;
  for (int64_t r = 0; r < a.x.rows; ++r) {
    for (int64_t c = 0; c < a.x.cols; ++c) result = larger(result, load(a.x, r, c));
  }
  *a.amax = result;
}

bool takes(DType dtype) { return is_high_precision(dtype); }

}  // namespace

void reference::fill_quantize(Kernels& table) {
  table.amax = {[](const AmaxArgs& a) { return takes(a.x.dtype); }, scalar_amax};
  table.quantize = {[](const QuantizeArgs& a) {
                      return takes(a.x.dtype) && a.format.quantized() && !a.format.swizzled &&
                             a.column_factors == nullptr && why_invalid(a.format).empty();
                    },
                    [](const QuantizeArgs& a, Stream) { Quantizer(a).run(); }};
  table.dequantize = {[](const DequantizeArgs& a) {
                        return a.format.quantized() &&
                               (a.y.dtype == DType::kF32 || a.y.dtype == DType::kBF16);
                      },
                      scalar_dequantize};
}

}  // namespace halftone
