#include "halftone/quantize/compensate.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/base/threads.h"
#include "halftone/kernels/quantize.h"
#include "halftone/numerics/bf16.h"
#include "halftone/numerics/minifloat.h"
#include "halftone/numerics/scale_rules.h"
#include "halftone/tensor/float_values.h"

namespace halftone {
namespace {

struct Coded {
  uint8_t code;
  float value;  // without the scale
};
Coded code_of(ElementType element, float x) {
  if (element == ElementType::kE2M1) {
    const uint8_t code = encode<E2M1>(x);
    return {code, decode<E2M1>(code)};
  }
  if (element == ElementType::kE5M2) {
    const uint8_t code = encode<E5M2>(x);
    return {code, decode<E5M2>(code)};
  }
  const uint8_t code = encode<E4M3>(x);
  return {code, decode<E4M3>(code)};
}

// Rows of the weight, a block of columns at a time.
class RowRounder {
 public:
  RowRounder(const Format& format, float tensor_scale, const ErrorSpread& spread)
      : format_(format), tensor_scale_(tensor_scale), cols_(spread.size()) {}

  // Of one row: what it is by now, what it was, and where codes and scales go.
  struct Row {
    float* now;
    const float* before;
    uint8_t *codes, *scales;
    float scale = 1, factor = 1;
  };
  void begin(Row& row) const {
    row.scale = tensor_scale_;
    if (format_.span == ScaleSpan::kRow) {
      row.scale = amax_scale(largest(row.now, cols_), format_.element_max());
      std::memcpy(row.scales, &row.scale, sizeof row.scale);
    }
    row.factor = 1.0f / row.scale;
  }
  // Errors of the block's columns are left in `errors`; columns after the block are not touched.
  void round(Row& row, const ErrorSpread::Block& block, float* errors) const {
    for (int64_t i = 0; i < block.width; ++i) {
      const int64_t j = block.first + i;
      if (format_.span == ScaleSpan::kBlock && j % format_.block == 0) choose_scale(row, j);
      const auto [code, value] = code_of(format_.element, row.now[j] * row.factor);
      store(row.codes, j, code);
      errors[i] = row.before[j] - value * row.scale;
      const float* own = block.own.data() + i * block.width;
      float* now = row.now + block.first;
      for (int64_t k = i + 1; k < block.width; ++k) now[k] += errors[i] * own[k];
    }
  }

 private:
  static float largest(const float* x, int64_t n) {
    float most = 0;
    for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
    return most;
  }

  // Of the block as it is by now, by the rules of the plain quantizer.
  uint8_t nvfp4_scale(const float* x, int64_t n, float amax) const {
    const auto scale_for = [&](float target) {
      return nvfp4_block_scale(amax, target, tensor_scale_, format_.min_block_scale);
    };
    const uint8_t six = scale_for(6);
    if (!format_.four_over_six) return six;
    const uint8_t four = scale_for(4);
    return squared_error(x, n, four) < squared_error(x, n, six) ? four : six;
  }
  double squared_error(const float* x, int64_t n, uint8_t code) const {
    const float scale = decode<E4M3>(code) * tensor_scale_;
    const float factor = nvfp4_reciprocal(decode<E4M3>(code), tensor_scale_);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double error = x[i] - code_of(format_.element, x[i] * factor).value * scale;
      sum += error * error;
    }
    return sum;
  }

  void choose_scale(Row& row, int64_t first) const {
    const int64_t n = std::min<int64_t>(format_.block, cols_ - first);
    const float* x = row.now + first;
    const float amax = largest(x, n);
    uint8_t& code = row.scales[first / format_.block];
    if (format_.global_scale) {
      code = nvfp4_scale(x, n, amax);
      row.scale = decode<E4M3>(code) * tensor_scale_;
      row.factor = nvfp4_reciprocal(decode<E4M3>(code), tensor_scale_);
    } else {
      code = format_.element == ElementType::kE4M3 ? mx_scale<E4M3>(amax, format_.rounding)
                                                   : mx_scale<E5M2>(amax, format_.rounding);
      row.scale = decode_e8m0(code);
      row.factor = reciprocal_e8m0(code);
    }
  }
  void store(uint8_t* codes, int64_t j, uint8_t code) const {
    if (format_.element != ElementType::kE2M1) {
      codes[j] = code;
    } else if (j % 2 == 0) {
      codes[j / 2] = code;
    } else {
      codes[j / 2] = static_cast<uint8_t>(codes[j / 2] | code << 4);
    }
  }

  const Format& format_;
  float tensor_scale_;
  int64_t cols_;
};

// Where rows of a weight go.
struct Target {
  uint8_t *codes, *scales;
  int64_t code_bytes, scale_bytes;  // per row
};

// Rows [begin, end), so many that what they do to later columns is a product worth its name.
void round_rows(const RowRounder& rounder, const ErrorSpread& spread, const std::vector<float>& w,
                int64_t begin, int64_t end, const Target& to, const Kernels& kernels) {
  const int64_t cols = spread.size(), count = end - begin;
  std::vector<float> now(w.begin() + begin * cols, w.begin() + end * cols);
  std::vector<float> errors(static_cast<size_t>(count * ErrorSpread::kBlock)), product;
  std::vector<RowRounder::Row> rows;
  for (int64_t r = 0; r < count; ++r) {
    rows.push_back({now.data() + r * cols, w.data() + (begin + r) * cols,
                    to.codes + (begin + r) * to.code_bytes,
                    to.scales + (begin + r) * to.scale_bytes});
    rounder.begin(rows.back());
  }
  for (const ErrorSpread::Block& block : spread.blocks()) {
    for (int64_t r = 0; r < count; ++r) {
      rounder.round(rows[static_cast<size_t>(r)], block, errors.data() + r * block.width);
    }
    if (block.after == 0) break;
    product.resize(static_cast<size_t>(count * block.after));
    MatMulArgs args;
    args.a = {errors.data(), DType::kF32, {count, block.width}};
    args.b = {block.rest.data(), DType::kF32, {block.width, block.after}};
    args.y = {product.data(), DType::kF32, {count, block.after}};
    multiply_floats(args, kernels, {1});
    for (int64_t r = 0; r < count; ++r) {
      float* row = now.data() + r * cols + block.first + block.width;
      const float* add = product.data() + r * block.after;
      for (int64_t k = 0; k < block.after; ++k) row[k] += add[k];
    }
  }
}

// tr(d M d^T) for d [rows, K].
double energy(const std::vector<float>& d, int64_t rows, const InputMoments& moments,
              const Kernels& kernels, Stream stream) {
  const int64_t n = moments.size();
  std::vector<float> product(d.size());
  MatMulArgs args;
  args.a = {d.data(), DType::kF32, {rows, n}};
  args.b = {moments.sums().data(), DType::kF32, {n, n}};
  args.y = {product.data(), DType::kF32, {rows, n}};
  multiply_floats(args, kernels, stream);
  double sum = 0;
  for (size_t i = 0; i < d.size(); ++i) sum += double{d[i]} * product[i];
  return std::max(sum, 0.0);
}

// The energy of rounding errors, of some rows, evenly spread: as many as tell which of two
// roundings is better.
double error_energy(const std::vector<float>& w, const QuantizedTensor& q,
                    const InputMoments& moments, const Kernels& kernels, Stream stream) {
  constexpr int64_t kMostRows = 512;
  const int64_t cols = moments.size(), all = static_cast<int64_t>(w.size()) / cols,
                rows = std::min(all, kMostRows);
  const Tensor y = dequantize(kernels, q, DType::kF32, stream);
  std::vector<float> d(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t from = r * all / rows * cols;
    for (int64_t c = 0; c < cols; ++c) d[r * cols + c] = w[from + c] - y.as<float>()[from + c];
  }
  return energy(d, rows, moments, kernels, stream);
}

}  // namespace

double output_error(const Tensor& weight, const QuantizedTensor& q, const InputMoments& moments,
                    const Kernels& kernels, Stream stream) {
  const std::vector<float> w = float_values(weight);
  const Tensor y = dequantize(kernels, q, DType::kF32, stream);
  std::vector<float> d(w.size());
  for (size_t i = 0; i < d.size(); ++i) d[i] = w[i] - y.as<float>()[i];
  const int64_t rows = weight.shape()[0];
  const double norm = energy(w, rows, moments, kernels, stream);
  return norm > 0 ? std::sqrt(energy(d, rows, moments, kernels, stream) / norm) : 0.0;
}

QuantizedTensor quantize_compensated(const Tensor& weight, const Format& format,
                                     const InputStatistics& inputs, const Kernels& kernels,
                                     Stream stream) {
  QuantizedTensor plain = quantize(kernels, weight, format, {}, stream);
  const int64_t rows = weight.shape()[0], cols = weight.shape()[1];
  const bool takes = format.tile_rows == 1;  // rows of a tile would have to be rounded together
  if (inputs.spread.empty() || inputs.spread.size() != cols || !takes) return plain;
  QuantizedTensor q = QuantizedTensor::empty(format, weight.shape());
  float tensor_scale = 1;
  if (format.global_scale) {
    tensor_scale = plain.global_scale.as<float>()[0];
    q.global_scale.mutable_as<float>()[0] = tensor_scale;
  } else if (format.span == ScaleSpan::kTensor) {
    tensor_scale = plain.scales.as<float>()[0];
    q.scales.mutable_as<float>()[0] = tensor_scale;
  }
  const std::vector<float> w = float_values(weight);
  const RowRounder rounder(format, tensor_scale, inputs.spread);
  const int64_t scale_bytes =
      format.span == ScaleSpan::kTensor ? 0 : format.scales_per_row(cols) * format.scale_bytes();
  const Target to{reinterpret_cast<uint8_t*>(q.codes.mutable_bytes().data()),
                  reinterpret_cast<uint8_t*>(q.scales.mutable_bytes().data()),
                  format.code_bytes(cols), scale_bytes};
  constexpr int64_t kRows = 128;  // at a time, whatever the number of threads
  parallel_for(stream.threads, (rows + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      round_rows(rounder, inputs.spread, w, i * kRows, std::min((i + 1) * kRows, rows), to,
                 kernels);
    }
  });
  return error_energy(w, q, inputs.moments, kernels, stream) <
                 error_energy(w, plain, inputs.moments, kernels, stream)
             ? q
             : plain;
}

}  // namespace halftone
