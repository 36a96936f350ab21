#include "halftone/kernels/cpu/scalar/reference.h"
#include "halftone/kernels/layouts.h"
#include "halftone/numerics/gelu.h"
#include "halftone/numerics/minifloat.h"
#include "halftone/numerics/scale_rules.h"

namespace halftone::reference {
namespace {

double decoded(ElementType element, uint8_t code) {
  if (element == ElementType::kE2M1) return decode<E2M1>(code);
  return element == ElementType::kE4M3 ? decode<E4M3>(code) : decode<E5M2>(code);
}

// A matrix as doubles: of a quantized one, code times scales, which a double holds without
// rounding.
std::vector<double> operand(const ConstView& x) {
  if (x.format == nullptr) return read(x);
  const Format& f = *x.format;
  const int64_t rows = x.shape[0], cols = x.shape[1];
  const int64_t shared = x.rows_per_scale > 0 ? x.rows_per_scale : rows;
  std::vector<double> values(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) {
    const auto* codes = static_cast<const uint8_t*>(x.data) + r * f.code_bytes(cols);
    for (int64_t c = 0; c < cols; ++c) {
      const bool packed = f.element == ElementType::kE2M1;
      const int code = packed ? codes[c / 2] >> (c % 2 * 4) & 0xF : codes[c];
      double value = decoded(f.element, static_cast<uint8_t>(code));
      if (f.span == ScaleSpan::kBlock) {
        const auto* scales = static_cast<const uint8_t*>(x.scales) + r * f.scales_per_row(cols);
        const uint8_t scale = scales[c / f.block];
        value *= f.scale == ScaleType::kE8M0 ? decode_e8m0(scale) : decode<E4M3>(scale);
        if (f.global_scale) value *= x.global_scale[r / shared];
      } else {
        value *= static_cast<const float*>(x.scales)[f.span == ScaleSpan::kRow ? r : r / shared];
      }
      values[r * cols + c] = value;
    }
  }
  return values;
}

void matmul(const MatMulArgs& args, Stream) {
  const auto a = operand(args.a), b = operand(args.b), bias = read(args.bias);
  const auto addend = read(args.addend);
  const int64_t m = args.y.shape[0], n = args.y.shape[1];
  const int64_t k = args.a.shape[args.how.transpose_a ? 0 : 1];
  std::vector<double> y(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias.empty() ? 0 : bias[j];
      if (!addend.empty()) sum += addend[i * n + j];
      for (int64_t p = 0; p < k; ++p) {
        const double x = args.how.transpose_a ? a[p * m + i] : a[i * k + p];
        const double w = args.how.transpose_b ? b[j * k + p] : b[p * n + j];
        sum += x * w;
      }
      y[i * n + j] = args.gelu ? gelu(sum) : sum;
    }
  }
  write(args.y, y);
}

// Calls fn(index in x, index in weight, index in y) for every product of a convolution.
struct ConvShape {
  ConvShape(const Shape& x_shape, const KernelLayout& by, const Shape& y_shape,
            const ConvAttributes& attributes)
      : x(x_shape, attributes.channels_last),
        kernel(by),
        y(y_shape, attributes.channels_last),
        how(attributes) {}

  template <class Fn>
  void for_each(const Fn& fn) const {
    for (int64_t b = 0; b < y.batch; ++b) {
      for (int64_t o = 0; o < y.channels; ++o) {
        for (int64_t r = 0; r < y.height; ++r) {
          for (int64_t c = 0; c < y.width; ++c) products_of(b, o, r, c, fn);
        }
      }
    }
  }

  PictureLayout x;
  KernelLayout kernel;
  PictureLayout y;
  ConvAttributes how;

 private:
  template <class Fn>
  void products_of(int64_t b, int64_t o, int64_t r, int64_t c, const Fn& fn) const {
    for (int64_t i = 0; i < x.channels; ++i) {
      for (int64_t u = 0; u < kernel.height; ++u) {
        const int64_t row = r * how.stride + u - how.pad[0];
        if (row < 0 || row >= x.height) continue;
        for (int64_t v = 0; v < kernel.width; ++v) {
          const int64_t column = c * how.stride + v - how.pad[1];
          if (column < 0 || column >= x.width) continue;
          fn(x.at(b, i, row, column), kernel.at(o, i, u, v), y.at(b, o, r, c));
        }
      }
    }
  }
};

KernelLayout kernel_of(const ConstView& weight) { return {weight.shape, weight.channels_last}; }

void conv2d(const ConvArgs& args, Stream) {
  const auto x = read(args.x), weight = read(args.weight), bias = read(args.bias);
  const auto shift = read(args.shift), addend = read(args.addend);
  std::vector<double> y(static_cast<size_t>(args.y.shape.numel()), 0.0);
  const ConvShape shape(args.x.shape, kernel_of(args.weight), args.y.shape, args.how);
  shape.for_each([&](int64_t from, int64_t by, int64_t to) { y[to] += x[from] * weight[by]; });
  const PictureLayout& p = shape.y;
  for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
    const int64_t b = i / p.item, c = i / p.channel % p.channels;
    if (!bias.empty()) y[i] += bias[c];
    if (!shift.empty()) y[i] += shift[b * p.channels + c];
    if (!addend.empty()) y[i] += addend[i];
  }
  write(args.y, y);
}

void conv2d_input_grad(const ConvInputGradArgs& args, Stream) {
  const auto dy = read(args.dy), weight = read(args.weight);
  std::vector<double> dx(static_cast<size_t>(args.dx.shape.numel()), 0.0);
  const ConvShape shape(args.dx.shape, kernel_of(args.weight), args.dy.shape, args.how);
  shape.for_each([&](int64_t from, int64_t by, int64_t to) { dx[from] += dy[to] * weight[by]; });
  write(args.dx, dx);
}

void conv2d_weight_grad(const ConvWeightGradArgs& args, Stream) {
  const auto dy = read(args.dy), x = read(args.x);
  std::vector<double> dw(static_cast<size_t>(args.dweight.shape.numel()), 0.0);
  const ConvShape shape(args.x.shape, {args.dweight.shape, false}, args.dy.shape, args.how);
  shape.for_each([&](int64_t from, int64_t by, int64_t to) { dw[by] += dy[to] * x[from]; });
  write(args.dweight, dw);
}

}  // namespace

void fill_products(Kernels& table) {
  table.matmul = always(matmul);
  table.conv2d = always(conv2d);
  table.conv2d_input_grad = always(conv2d_input_grad);
  table.conv2d_weight_grad = always(conv2d_weight_grad);
}

}  // namespace halftone::reference
