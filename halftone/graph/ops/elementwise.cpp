#include "halftone/graph/catalogue.h"
#include "halftone/graph/ops.h"

namespace halftone {
namespace {

// Dimensions align at the end; each pair is equal or one of them is 1.
Shape broadcast_shape(const char* op, const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::vector<int64_t> dims(static_cast<size_t>(rank), 1);
  for (int i = 1; i <= rank; ++i) {
    const int64_t x = i <= a.rank() ? a[-i] : 1, y = i <= b.rank() ? b[-i] : 1;
    require(x == y || x == 1 || y == 1, "{}: shapes {} and {} do not broadcast", op, a, b);
    dims[rank - i] = x == 1 ? y : x;
  }
  return Shape(dims);
}

Value binary(Op op, Value a, Value b) {
  const Shape shape = broadcast_shape(op_info(op).name.data(), a.shape(), b.shape());
  return a.graph().add(op, {a, b}, {}, {shape, a.dtype(), {}});
}

// A gradient in the shape and dtype of what it belongs to.
Value like(Value gradient, Value x) { return cast(sum_to(gradient, x.shape()), x.dtype()); }

}  // namespace

Value add(Value a, Value b) { return binary(Op::kAdd, a, b); }
Gradients add_gradient(const GradientContext& c) {
  return {like(c.dy, c.inputs[0]), like(c.dy, c.inputs[1])};
}

Value mul(Value a, Value b) { return binary(Op::kMul, a, b); }
Gradients mul_gradient(const GradientContext& c) {
  const Value a = c.inputs[0], b = c.inputs[1];
  return {like(c.dy * b, a), like(c.dy * a, b)};
}

Value affine(Value x, float scale, float shift) {
  return x.graph().add(Op::kAffine, {x}, AffineAttributes{scale, shift}, x.type());
}
Gradients affine_gradient(const GradientContext& c) {
  return {affine(c.dy, std::get<AffineAttributes>(c.attributes).scale, 0)};
}

Value apply(Function function, Value x) {
  return x.graph().add(Op::kUnary, {x}, UnaryAttributes{function}, x.type());
}
Gradients unary_gradient(const GradientContext& c) {
  const Value x = c.inputs[0], y = c.outputs[0];
  switch (std::get<UnaryAttributes>(c.attributes).function) {
    case Function::kTanh:
      return {c.dy * affine(y * y, -1, 1)};
    case Function::kSigmoid:
      return {c.dy * y * affine(y, -1, 1)};
    case Function::kSilu: {
      const Value s = sigmoid(x);
      return {c.dy * s * affine(x * affine(s, -1, 1), 1, 1)};
    }
    case Function::kGelu: {  // x (1 + t) / 2 with t = tanh(u), u = a (x + b x^3)
      constexpr float kA = 0.7978845608f, kB = 0.044715f;
      const Value square = x * x;
      const Value t = tanh(x * affine(square, kA * kB, kA));
      // Times u' = a (1 + 3 b x^2), one x at a time: where x^2 overflows, the rest is zero already.
      const Value flat = x * affine(t * t, -0.5f, 0.5f);
      const Value inner = affine(flat, kA, 0) + affine(flat * x * x, 3 * kA * kB, 0);
      return {c.dy * (affine(t, 0.5f, 0.5f) + inner)};
    }
    case Function::kQuickGelu: {  // x s with s = sigmoid(a x)
      constexpr float kA = 1.702f;
      const Value s = sigmoid(affine(x, kA, 0));
      // One x at a time: where a x overflows, the rest is zero already.
      return {c.dy * (s + affine(s * affine(s, -1, 1) * x, kA, 0))};
    }
    case Function::kErfGelu:
      return {c.dy * apply(Function::kErfGeluSlope, x)};
    case Function::kErfGeluSlope:
      require(false, "unary: the slope of GELU is not differentiated again");
      break;
    case Function::kSin:
      return {c.dy * apply(Function::kCos, x)};
    case Function::kCos:
      return {-(c.dy * apply(Function::kSin, x))};
  }
  return {std::nullopt};
}

Value silu_mul(Value gate, Value up) {
  require(gate.shape() == up.shape(), "silu_mul: gate {} and up {} differ", gate.shape(),
          up.shape());
  return gate.graph().add(Op::kSiluMul, {gate, up}, {}, gate.type());
}
Gradients silu_mul_gradient(const GradientContext& c) {
  const Value gate = c.inputs[0], up = c.inputs[1];
  const Value s = sigmoid(gate);
  return {c.dy * up * s * affine(gate * affine(s, -1, 1), 1, 1), c.dy * gate * s};
}

Value cast(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return x.graph().add(Op::kCast, {x}, {}, {x.shape(), dtype, {}});
}
Gradients cast_gradient(const GradientContext& c) { return {cast(c.dy, c.inputs[0].dtype())}; }

Value mean_squared_error(Value a, Value b) {
  const Value difference = a - b;
  const auto count = static_cast<float>(difference.shape().numel());
  return affine(sum_to(difference * difference, {1}), 1 / count, 0);
}

}  // namespace halftone
