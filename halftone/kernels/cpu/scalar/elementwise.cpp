#include <cmath>

#include "halftone/kernels/cpu/scalar/reference.h"
#include "halftone/numerics/gelu.h"

namespace halftone::reference {
namespace {

// Strides of `shape` seen as an array of `like`'s shape; 0 where it is broadcast.
std::array<int64_t, Shape::kMaxRank> broadcast_strides(const Shape& shape, const Shape& like) {
  std::array<int64_t, Shape::kMaxRank> strides{};
  int64_t stride = 1;
  for (int i = 1; i <= shape.rank(); ++i) {
    if (shape[-i] != 1) strides[like.rank() - i] = stride;
    stride *= shape[-i];
  }
  return strides;
}

// Calls fn(position, offset in a, offset in b) for every element of shape, in order.
template <class Fn>
void for_each(const Shape& shape, const std::array<int64_t, Shape::kMaxRank>& a,
              const std::array<int64_t, Shape::kMaxRank>& b, const Fn& fn) {
  std::array<int64_t, Shape::kMaxRank> index{};
  const int64_t count = shape.numel();
  for (int64_t position = 0; position < count; ++position) {
    int64_t offset_a = 0, offset_b = 0;
    for (int d = 0; d < shape.rank(); ++d) {
      offset_a += index[d] * a[d];
      offset_b += index[d] * b[d];
    }
    fn(position, offset_a, offset_b);
    for (int d = shape.rank() - 1; d >= 0; --d) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

void binary(const BinaryArgs& args, Stream) {
  const auto a = read(args.a), b = read(args.b);
  std::vector<double> y(static_cast<size_t>(args.y.shape.numel()));
  for_each(args.y.shape, broadcast_strides(args.a.shape, args.y.shape),
           broadcast_strides(args.b.shape, args.y.shape), [&](int64_t i, int64_t ia, int64_t ib) {
             y[i] = args.function == BinaryFunction::kAdd ? a[ia] + b[ib] : a[ia] * b[ib];
           });
  write(args.y, y);
}

void affine(const AffineArgs& args, Stream) {
  auto x = read(args.x);
  for (double& v : x) v = v * args.how.scale + args.how.shift;
  write(args.y, x);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double evaluate(Function function, double x) {
  switch (function) {
    case Function::kTanh:
      return std::tanh(x);
    case Function::kSigmoid:
      return sigmoid(x);
    case Function::kSilu:
      return x * sigmoid(x);
    case Function::kGelu:
      return gelu(x);
    case Function::kQuickGelu:
      return quick_gelu(x);
    case Function::kErfGelu:
      return erf_gelu(x);
    case Function::kErfGeluSlope:
      return erf_gelu_slope(x);
    case Function::kSin:
      return std::sin(x);
    case Function::kCos:
      return std::cos(x);
  }
  return 0;
}

void unary(const UnaryArgs& args, Stream) {
  auto x = read(args.x);
  for (double& v : x) v = evaluate(args.how.function, v);
  write(args.y, x);
}

void silu_mul(const SiluMulArgs& args, Stream) {
  auto gate = read(args.gate);
  const auto up = read(args.up);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] *= sigmoid(gate[i]) * up[i];
  write(args.y, gate);
}

void sum_to(const SumToArgs& args, Stream) {
  const auto x = read(args.x);
  std::vector<double> y(static_cast<size_t>(args.y.shape.numel()), 0.0);
  for_each(args.x.shape, broadcast_strides(args.y.shape, args.x.shape), {},
           [&](int64_t i, int64_t to, int64_t) { y[to] += x[i]; });
  write(args.y, y);
}

void copy(const CopyArgs& args, Stream) {
  const Shape shape(std::span<const int64_t>(args.dims.data(), static_cast<size_t>(args.rank)));
  for_each(shape, args.x_strides, args.y_strides, [&](int64_t, int64_t from, int64_t to) {
    store(args.y, args.y_dtype, to, load(args.x, args.x_dtype, from));
  });
}

void upsample2x(const Upsample2xArgs& args, Stream) {
  const auto x = read(args.x);
  const int64_t height = args.x.shape[2], width = args.x.shape[3];
  const int64_t planes = args.x.shape[0] * args.x.shape[1];
  std::vector<double> y(static_cast<size_t>(args.y.shape.numel()));
  for (int64_t p = 0; p < planes; ++p) {
    for (int64_t r = 0; r < 2 * height; ++r) {
      for (int64_t c = 0; c < 2 * width; ++c) {
        y[(p * 2 * height + r) * 2 * width + c] = x[(p * height + r / 2) * width + c / 2];
      }
    }
  }
  write(args.y, y);
}

void upsample2x_grad(const Upsample2xArgs& args, Stream) {
  const auto dy = read(args.x);
  const int64_t height = args.y.shape[2], width = args.y.shape[3];
  const int64_t planes = args.y.shape[0] * args.y.shape[1];
  std::vector<double> dx(static_cast<size_t>(args.y.shape.numel()), 0.0);
  for (int64_t p = 0; p < planes; ++p) {
    for (int64_t r = 0; r < 2 * height; ++r) {
      for (int64_t c = 0; c < 2 * width; ++c) {
        dx[(p * height + r / 2) * width + c / 2] += dy[(p * 2 * height + r) * 2 * width + c];
      }
    }
  }
  write(args.y, dx);
}

void adamw(const AdamWArgs& args, Stream) {
  auto p = read({args.parameters.data, args.parameters.dtype, args.parameters.shape});
  auto first = read({args.first.data, args.first.dtype, args.first.shape});
  auto second = read({args.second.data, args.second.dtype, args.second.shape});
  const auto gradients = read(args.gradients);
  const double b1 = args.beta1, b2 = args.beta2, step = static_cast<double>(args.step);
  for (size_t i = 0; i < p.size(); ++i) {
    const double g = gradients[i] * args.gradient_scale;
    p[i] *= 1 - static_cast<double>(args.learning_rate) * args.weight_decay;
    first[i] = b1 * first[i] + (1 - b1) * g;
    second[i] = b2 * second[i] + (1 - b2) * g * g;
    const double m = first[i] / (1 - std::pow(b1, step)), v = second[i] / (1 - std::pow(b2, step));
    p[i] -= args.learning_rate * m / (std::sqrt(v) + args.eps);
  }
  write(args.parameters, p);
  write(args.first, first);
  write(args.second, second);
  if (args.average.data == nullptr) return;
  auto average = read({args.average.data, args.average.dtype, args.average.shape});
  for (size_t i = 0; i < p.size(); ++i) average[i] += args.average_rate * (p[i] - average[i]);
  write(args.average, average);
}

}  // namespace

void fill_elementwise(Kernels& table) {
  table.fill = always<FillArgs>([](const FillArgs& args, Stream) {
    for (int64_t i = 0; i < args.y.shape.numel(); ++i) {
      store(args.y.data, args.y.dtype, i, args.value);
    }
  });
  table.binary = always(binary);
  // 8-bit moments, and values in BF16, have no other reference than their own arithmetic: see
  // kernels/adamw.h.
  table.adamw = {[](const AdamWArgs& a) {
                   return a.first.dtype == DType::kF32 && a.parameters.dtype == DType::kF32;
                 },
                 adamw, nullptr};
  table.affine = always(affine);
  table.unary = always(unary);
  table.silu_mul = always(silu_mul);
  table.sum_to = always(sum_to);
  table.copy = always(copy);
  table.upsample2x = always(upsample2x);
  table.upsample2x_grad = always(upsample2x_grad);
}

}  // namespace halftone::reference
