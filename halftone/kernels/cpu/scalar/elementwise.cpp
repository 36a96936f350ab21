#include <cmath>

#include "halftone/kernels/cpu/scalar/reference.h"
#include "halftone/kernels/layouts.h"
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

// Calls fn(place in the small picture, place in the large one).
template <class Fn>
void for_each_of_large(const Shape& small_shape, const Shape& large_shape, bool channels_last,
                       const Fn& fn) {
  const PictureLayout small(small_shape, channels_last), large(large_shape, channels_last);
  for (int64_t b = 0; b < large.batch; ++b) {
    for (int64_t c = 0; c < large.channels; ++c) {
      for (int64_t r = 0; r < large.height; ++r) {
        for (int64_t column = 0; column < large.width; ++column) {
          fn(small.at(b, c, r / 2, column / 2), large.at(b, c, r, column));
        }
      }
    }
  }
}

void upsample2x(const Upsample2xArgs& args, Stream) {
  const auto x = read(args.x);
  std::vector<double> y(static_cast<size_t>(args.y.shape.numel()));
  for_each_of_large(args.x.shape, args.y.shape, args.how.channels_last,
                    [&](int64_t from, int64_t to) { y[to] = x[from]; });
  write(args.y, y);
}

void upsample2x_grad(const Upsample2xArgs& args, Stream) {
  const auto dy = read(args.x);
  std::vector<double> dx(static_cast<size_t>(args.y.shape.numel()), 0.0);
  for_each_of_large(args.y.shape, args.x.shape, args.how.channels_last,
                    [&](int64_t to, int64_t from) { dx[to] += dy[from]; });
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
