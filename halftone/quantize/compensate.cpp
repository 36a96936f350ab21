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

// A share of the mean diagonal that is added to it: inputs that were never seen have no moment.
constexpr double kDamping = 0.01;

// In several sums, so that the compiler can use vectors.
double dot(const double* a, const double* b, int64_t n) {
  constexpr int64_t kLanes = 8;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) sums[l] += a[i + l] * b[i + l];
  }
  double sum = 0;
  for (const double s : sums) sum += s;
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// a = L L^T in place of the lower triangle; false where a is not positive definite. A block of
// columns at a time, so that threads meet seldom.
bool cholesky(std::vector<double>& a, int64_t n, int threads) {
  constexpr int64_t kBlock = 64;
  // Entry (i, j), once all before it in rows i and j are final.
  const auto reduce = [&](int64_t i, int64_t j) {
    double *row = a.data() + i * n, *above = a.data() + j * n;
    row[j] = (row[j] - dot(row, above, j)) / above[j];
  };
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(first + kBlock, n);
    for (int64_t i = first; i < end; ++i) {
      for (int64_t j = first; j < i; ++j) reduce(i, j);
      double* row = a.data() + i * n;
      const double diagonal = row[i] - dot(row, row, i);
      if (!(diagonal > 0)) return false;
      row[i] = std::sqrt(diagonal);
    }
    parallel_for(threads, n - end, 16, [&](int64_t begin, int64_t stop) {
      for (int64_t i = end + begin; i < end + stop; ++i) {
        for (int64_t j = first; j < end; ++j) reduce(i, j);
      }
    });
  }
  return true;
}

// How the error of a column spreads: row j holds what columns after j are changed by, divided by
// its own entry. It is the upper Cholesky factor U of the moments' inverse, U^T U = M^-1. With
// M = R R^T, R upper triangular (a Cholesky factor taken from the last column on), U is R^-1.
std::vector<float> spread_of(const InputMoments& moments, int threads) {
  const int64_t n = moments.size();
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += moments.sums()[i * n + i] / static_cast<double>(n);
  if (!(mean > 0) || !std::isfinite(mean)) return {};
  // Reversed, so that the ordinary factor is the one wanted.
  std::vector<double> a(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      a[i * n + j] = moments.sums()[(n - 1 - i) * n + n - 1 - j] + (i == j ? kDamping * mean : 0);
    }
  }
  if (!cholesky(a, n, threads)) return {};
  // The inverse of the lower triangle, column by column.
  std::vector<double> inverse(static_cast<size_t>(n * n), 0.0);
  parallel_for(threads, n, 8, [&](int64_t begin, int64_t end) {
    std::vector<double> x(static_cast<size_t>(n));
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t i = c; i < n; ++i) {
        const double* row = a.data() + i * n;
        x[i] = ((i == c ? 1 : 0) - dot(row + c, x.data() + c, i - c)) / row[i];
        inverse[i * n + c] = x[i];
      }
    }
  });
  // Turned back: entry (j, k) for k >= j.
  std::vector<float> spread(static_cast<size_t>(n * n), 0.0f);
  for (int64_t j = 0; j < n; ++j) {
    const double* row = inverse.data() + (n - 1 - j) * n;
    for (int64_t k = j; k < n; ++k) {
      spread[j * n + k] = static_cast<float>(row[n - 1 - k] / row[n - 1 - j]);
    }
  }
  return spread;
}

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

// One row of the weight, column by column.
class RowRounder {
 public:
  RowRounder(const Format& format, float tensor_scale, int64_t cols,
             const std::vector<float>& spread)
      : format_(format), tensor_scale_(tensor_scale), cols_(cols), spread_(spread) {}

  void run(float* w, uint8_t* codes, uint8_t* scales) const {
    float scale = tensor_scale_;
    if (format_.span == ScaleSpan::kRow) {
      scale = amax_scale(largest(w, cols_), format_.element_max());
      std::memcpy(scales, &scale, sizeof scale);
    }
    const int64_t step = format_.span == ScaleSpan::kBlock ? format_.block : cols_;
    float factor = 1.0f / scale;
    for (int64_t first = 0; first < cols_; first += step) {
      const int64_t end = std::min(first + step, cols_);
      if (format_.span == ScaleSpan::kBlock) {
        const float amax = largest(w + first, end - first);
        uint8_t& code = scales[first / format_.block];
        if (format_.global_scale) {
          code = nvfp4_scale(w + first, end - first, amax);
          scale = decode<E4M3>(code) * tensor_scale_;
          factor = nvfp4_reciprocal(decode<E4M3>(code), tensor_scale_);
        } else {
          code = format_.element == ElementType::kE4M3 ? mx_scale<E4M3>(amax, format_.rounding)
                                                       : mx_scale<E5M2>(amax, format_.rounding);
          scale = decode_e8m0(code);
          factor = reciprocal_e8m0(code);
        }
      }
      for (int64_t j = first; j < end; ++j) round_column(w, j, scale, factor, codes);
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

  void round_column(float* w, int64_t j, float scale, float factor, uint8_t* codes) const {
    const auto [code, value] = code_of(format_.element, w[j] * factor);
    if (format_.element != ElementType::kE2M1) {
      codes[j] = code;
    } else if (j % 2 == 0) {
      codes[j / 2] = code;
    } else {
      codes[j / 2] = static_cast<uint8_t>(codes[j / 2] | code << 4);
    }
    const float error = w[j] - value * scale;
    const float* row = spread_.data() + j * cols_;
    for (int64_t k = j + 1; k < cols_; ++k) w[k] -= error * row[k];
  }

  const Format& format_;
  float tensor_scale_;
  int64_t cols_;
  const std::vector<float>& spread_;
};

// y [m, n] = sum over k of a(i, k) b(k, :), for builds whose table has no product but the
// reference, which is in double and slow.
template <class A>
void multiply_rows(int64_t m, int64_t n, int64_t k, const A& a, const float* b, float* y,
                   int threads) {
  parallel_for(threads, m, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = y + i * n;
      std::fill_n(row, n, 0.0f);
      for (int64_t p = 0; p < k; ++p) {
        const float factor = a(i, p);
        const float* from = b + p * n;
        for (int64_t j = 0; j < n; ++j) row[j] += factor * from[j];
      }
    }
  });
}
bool has_fast_product(const Kernels& kernels) { return !kernels.matmul.first().reference; }

// y = op(a) b with scratch memory of its own.
void multiply(const MatMulArgs& args, const Kernels& kernels, Stream stream) {
  std::vector<std::byte> workspace;
  constexpr uintptr_t kAlignment = 256;
  stream.workspace_bytes = kernels.matmul.workspace(args, stream);
  workspace.resize(static_cast<size_t>(stream.workspace_bytes) + kAlignment);
  const auto start = reinterpret_cast<uintptr_t>(workspace.data());
  stream.workspace = workspace.data() + ((kAlignment - start % kAlignment) % kAlignment);
  kernels.matmul.launch(args, stream);
}

// tr(d M d^T) for d [rows, K].
double energy(const std::vector<float>& d, int64_t rows, const InputMoments& moments,
              const Kernels& kernels, Stream stream) {
  const int64_t n = moments.size();
  std::vector<float> product(d.size());
  if (has_fast_product(kernels)) {
    MatMulArgs args;
    args.how = {false, true};  // M is symmetric
    args.a = {d.data(), DType::kF32, {rows, n}};
    args.b = {moments.sums().data(), DType::kF32, {n, n}};
    args.y = {product.data(), DType::kF32, {rows, n}};
    multiply(args, kernels, stream);
  } else {
    const auto at = [&](int64_t i, int64_t k) { return d[i * n + k]; };
    multiply_rows(rows, n, n, at, moments.sums().data(), product.data(), stream.threads);
  }
  double sum = 0;
  for (size_t i = 0; i < d.size(); ++i) sum += double{d[i]} * product[i];
  return std::max(sum, 0.0);
}

}  // namespace

void InputMoments::add(const ConstView& x, const Kernels& kernels, Stream stream) {
  const int64_t cols = x.shape[-1], all = cols == 0 ? 0 : x.shape.numel() / cols;
  if (all == 0) return;
  if (size_ == 0) {
    size_ = cols;
    sums_.assign(static_cast<size_t>(cols * cols), 0.0f);
  }
  HT_ASSERT(size_ == cols);
  // Neighbouring tokens are alike: some of them, evenly spread, tell as much as all.
  const int64_t rows = std::min(all, kMostRows);
  std::vector<float> chosen(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t from = r * all / rows * cols;
    for (int64_t c = 0; c < cols; ++c) {
      chosen[r * cols + c] = x.dtype == DType::kF32
                                 ? static_cast<const float*>(x.data)[from + c]
                                 : to_float(static_cast<const bf16*>(x.data)[from + c]);
    }
  }
  std::vector<float> product(sums_.size());
  if (has_fast_product(kernels)) {
    MatMulArgs args;
    args.how = {true, false};
    args.a = args.b = {chosen.data(), DType::kF32, {rows, cols}};
    args.y = {product.data(), DType::kF32, {cols, cols}};
    multiply(args, kernels, stream);
  } else {
    const auto at = [&](int64_t i, int64_t k) { return chosen[k * cols + i]; };
    multiply_rows(cols, cols, rows, at, chosen.data(), product.data(), stream.threads);
  }
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += product[i];
}

const std::vector<float>& InputMoments::spread(int threads) const {
  if (spread_.empty()) spread_ = spread_of(*this, threads);
  return spread_;
}

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
                                     const InputMoments& moments, const Kernels& kernels,
                                     Stream stream) {
  const QuantizedTensor plain = quantize(kernels, weight, format, {}, stream);
  const int64_t rows = weight.shape()[0], cols = weight.shape()[1];
  const bool takes = format.tile_rows == 1;  // rows of a tile would have to be rounded together
  if (moments.size() != cols || !takes) return plain;
  const std::vector<float>& spread = moments.spread(stream.threads);
  if (spread.empty()) return plain;
  QuantizedTensor q = QuantizedTensor::empty(format, weight.shape());
  float tensor_scale = 1;
  if (format.global_scale) {
    tensor_scale = plain.global_scale.as<float>()[0];
    q.global_scale.mutable_as<float>()[0] = tensor_scale;
  } else if (format.span == ScaleSpan::kTensor) {
    tensor_scale = plain.scales.as<float>()[0];
    q.scales.mutable_as<float>()[0] = tensor_scale;
  }
  std::vector<float> w = float_values(weight);
  const RowRounder rounder(format, tensor_scale, cols, spread);
  auto* codes = reinterpret_cast<uint8_t*>(q.codes.mutable_bytes().data());
  auto* scales = reinterpret_cast<uint8_t*>(q.scales.mutable_bytes().data());
  const int64_t scale_bytes =
      format.span == ScaleSpan::kTensor ? 0 : format.scales_per_row(cols) * format.scale_bytes();
  parallel_for(stream.threads, rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      rounder.run(w.data() + r * cols, codes + r * format.code_bytes(cols),
                  scales + r * scale_bytes);
    }
  });
  return output_error(weight, q, moments, kernels, stream) <
                 output_error(weight, plain, moments, kernels, stream)
             ? q
             : plain;
}

}  // namespace halftone
