#include "halftone/kernels/cpu/scalar/reference.h"
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
  Shape x, weight, y;
  ConvAttributes how;

  template <class Fn>
  void for_each(const Fn& fn) const {
    const int64_t channels = x[1], height = x[2], width = x[3];
    const int64_t kh = weight[2], kw = weight[3];
    for (int64_t b = 0; b < y[0]; ++b) {
      for (int64_t o = 0; o < y[1]; ++o) {
        for (int64_t r = 0; r < y[2]; ++r) {
          for (int64_t c = 0; c < y[3]; ++c) {
            const int64_t to = ((b * y[1] + o) * y[2] + r) * y[3] + c;
            for (int64_t i = 0; i < channels; ++i) {
              for (int64_t u = 0; u < kh; ++u) {
                const int64_t row = r * how.stride + u - how.pad[0];
                if (row < 0 || row >= height) continue;
                for (int64_t v = 0; v < kw; ++v) {
                  const int64_t col = c * how.stride + v - how.pad[1];
                  if (col < 0 || col >= width) continue;
                  fn(((b * channels + i) * height + row) * width + col,
                     ((o * channels + i) * kh + u) * kw + v, to);
                }
              }
            }
          }
        }
      }
    }
  }
};

void conv2d(const ConvArgs& args, Stream) {
  const auto x = read(args.x), weight = read(args.weight), bias = read(args.bias);
  std::vector<double> y(static_cast<size_t>(args.y.shape.numel()), 0.0);
  const ConvShape shape{args.x.shape, args.weight.shape, args.y.shape, args.how};
  shape.for_each([&](int64_t from, int64_t by, int64_t to) { y[to] += x[from] * weight[by]; });
  const int64_t plane = args.y.shape[2] * args.y.shape[3];
  for (size_t i = 0; i < y.size() && !bias.empty(); ++i) {
    y[i] += bias[static_cast<int64_t>(i) / plane % args.y.shape[1]];
  }
  write(args.y, y);
}

void conv2d_input_grad(const ConvInputGradArgs& args, Stream) {
  const auto dy = read(args.dy), weight = read(args.weight);
  std::vector<double> dx(static_cast<size_t>(args.dx.shape.numel()), 0.0);
  const ConvShape shape{args.dx.shape, args.weight.shape, args.dy.shape, args.how};
  shape.for_each([&](int64_t from, int64_t by, int64_t to) { dx[from] += dy[to] * weight[by]; });
  write(args.dx, dx);
}

void conv2d_weight_grad(const ConvWeightGradArgs& args, Stream) {
  const auto dy = read(args.dy), x = read(args.x);
  std::vector<double> dw(static_cast<size_t>(args.dweight.shape.numel()), 0.0);
  const ConvShape shape{args.x.shape, args.dweight.shape, args.dy.shape, args.how};
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
