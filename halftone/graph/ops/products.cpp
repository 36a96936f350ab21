#include "halftone/graph/catalogue.h"
#include "halftone/graph/ops.h"
#include "halftone/kernels/layouts.h"

namespace halftone {
namespace {

// [..., C] as a matrix of rows.
Value as_rows(Value x) { return reshape(x, {x.shape().numel() / x.dim(-1), x.dim(-1)}); }

int64_t conv_size(int64_t size, int64_t kernel, int pad, int stride) {
  return (size + pad - kernel) / stride + 1;
}

// dY^T X of operands in 8 bits, each with a scale for every row of what is summed over tokens.
Value rounded_weight_gradient(Value dy, Value x, const Format& format) {
  return linear(quantize_weight(permute(dy, {1, 0}), format),
                quantize_weight(permute(x, {1, 0}), formats::fp8));
}

}  // namespace

Value quantize(Value x, const Format& format, float static_scale) {
  require(format.quantized() && !x.type().quantized && x.rank() >= 1,
          "quantize: {} cannot be quantized to {}", x.shape(), format.name);
  require(format.static_scale == (static_scale > 0), "quantize: static scale {} for {}",
          static_scale, format.name);
  return x.graph().add(Op::kQuantize, {x}, QuantizeAttributes{format, static_scale},
                       {x.shape(), x.dtype(), format});
}
Value quantize_weight(Value weight, const Format& format) {
  require(format.quantized() && !weight.type().quantized && weight.rank() == 2,
          "quantize: weight {} cannot be quantized to {}", weight.shape(), format.name);
  return weight.graph().add(Op::kQuantize, {weight}, QuantizeAttributes{format, 0},
                            {weight.shape(), weight.dtype(), format, true});
}
// Straight through: rounding is taken for the identity.
Gradients quantize_gradient(const GradientContext& c) { return {c.dy}; }

Value linear(Value x, Value weight, std::optional<Value> bias) {
  require(weight.rank() == 2 && x.rank() >= 1 && x.dim(-1) == weight.dim(1),
          "linear: input {} does not fit weight {}", x.shape(), weight.shape());
  std::vector<Value> inputs = {x, weight};
  if (bias) {
    require(bias->shape() == Shape{weight.dim(0)}, "linear: bias {} does not fit weight {}",
            bias->shape(), weight.shape());
    inputs.push_back(*bias);
  }
  std::vector<int64_t> dims(x.shape().dims().begin(), x.shape().dims().end());
  dims.back() = weight.dim(0);
  return x.graph().add(Op::kLinear, inputs, LinearAttributes{}, {Shape(dims), x.dtype(), {}});
}
Gradients linear_gradient(const GradientContext& c) {
  const Value x = c.inputs[0], weight = c.inputs[1];
  const Value dy = as_rows(c.dy);
  const auto to_input = [&] {
    if (!weight.type().quantized) return matmul(dy, weight, false, false);
    const LinearInputGradAttributes how{std::get<LinearAttributes>(c.attributes).gradients};
    return x.graph().add(Op::kLinearInputGrad, {dy, weight}, how,
                         {{dy.dim(0), weight.dim(1)}, dy.dtype(), {}});
  };
  Gradients gradients = {reshape(to_input(), x.shape()), std::nullopt};
  // A weight that is stored in a format is frozen; one that is rounded on the way is not.
  const bool stored = weight.graph().values()[weight.id()].source == Source::kWeight;
  const bool frozen = weight.type().quantized && stored;
  if (!frozen && !x.type().quantized) {
    const auto& how = std::get<LinearAttributes>(c.attributes);
    const Value dweight = how.gradients && how.round_weight_gradient
                              ? rounded_weight_gradient(dy, as_rows(x), *how.gradients)
                              : matmul(dy, as_rows(x), true, false, weight.dtype());
    gradients[1] = cast(dweight, weight.dtype());
  }
  if (c.inputs.size() > 2) {
    gradients.emplace_back(cast(sum_to(dy, c.inputs[2].shape()), c.inputs[2].dtype()));
  }
  return gradients;
}

Value matmul(Value a, Value b, bool transpose_a, bool transpose_b, std::optional<DType> result) {
  require(a.rank() == 2 && b.rank() == 2, "matmul: {} and {} are not matrices", a.shape(),
          b.shape());
  const int64_t m = a.dim(transpose_a ? 1 : 0), k = a.dim(transpose_a ? 0 : 1);
  const int64_t n = b.dim(transpose_b ? 0 : 1);
  require(k == b.dim(transpose_b ? 1 : 0), "matmul: {} and {} do not fit", a.shape(), b.shape());
  return a.graph().add(Op::kMatMul, {a, b}, MatMulAttributes{transpose_a, transpose_b},
                       {{m, n}, result.value_or(a.dtype()), {}});
}
Gradients matmul_gradient(const GradientContext& c) {
  const auto& t = std::get<MatMulAttributes>(c.attributes);
  const Value a = c.inputs[0], b = c.inputs[1];
  // C = op(A) op(B): dop(A) = dC op(B)^T, dop(B) = op(A)^T dC; transposed back where it was.
  const Value da =
      t.transpose_a ? matmul(b, c.dy, t.transpose_b, true) : matmul(c.dy, b, false, !t.transpose_b);
  const Value db =
      t.transpose_b ? matmul(c.dy, a, true, t.transpose_a) : matmul(a, c.dy, !t.transpose_a, false);
  return {cast(da, a.dtype()), cast(db, b.dtype())};
}

Value conv2d(Value x, Value weight, std::optional<Value> bias, const ConvAttributes& a) {
  require(x.rank() == 4 && weight.rank() == 4 && x.dim(a.channels_last ? 3 : 1) == weight.dim(1),
          "conv2d: input {} does not fit weight {}", x.shape(), weight.shape());
  const PictureLayout p(x.shape(), a.channels_last);
  const int64_t height = conv_size(p.height, weight.dim(2), a.pad[0] + a.pad[2], a.stride);
  const int64_t width = conv_size(p.width, weight.dim(3), a.pad[1] + a.pad[3], a.stride);
  require(a.stride >= 1 && height >= 1 && width >= 1, "conv2d: input {} is too small for weight {}",
          x.shape(), weight.shape());
  std::vector<Value> inputs = {x, weight};
  if (bias) {
    require(bias->shape() == Shape{weight.dim(0)}, "conv2d: bias {} does not fit weight {}",
            bias->shape(), weight.shape());
    inputs.push_back(*bias);
  }
  const Shape shape = picture_shape(p.batch, weight.dim(0), height, width, a.channels_last);
  return x.graph().add(Op::kConv2d, inputs, a, {shape, x.dtype(), {}});
}
Gradients conv2d_gradient(const GradientContext& c) {
  const auto& a = std::get<ConvAttributes>(c.attributes);
  const Value x = c.inputs[0], weight = c.inputs[1];
  Graph& graph = x.graph();
  Gradients gradients = {graph.add(Op::kConv2dInputGrad, {c.dy, weight}, a, x.type()),
                         graph.add(Op::kConv2dWeightGrad, {c.dy, x}, a, weight.type())};
  if (c.inputs.size() > 2) {
    const Value bias = c.inputs[2];
    const int64_t out = bias.dim(0);
    const Value per_channel = sum_to(c.dy, a.channels_last ? Shape{out} : Shape{out, 1, 1});
    gradients.emplace_back(cast(reshape(per_channel, bias.shape()), bias.dtype()));
  }
  return gradients;
}

}  // namespace halftone
