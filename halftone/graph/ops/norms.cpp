#include "halftone/graph/catalogue.h"
#include "halftone/graph/ops.h"

namespace halftone {

Value rms_norm(Value x, Value weight, float eps) {
  require(weight.shape() == Shape{x.dim(-1)}, "rms_norm: weight {} does not fit {}", weight.shape(),
          x.shape());
  return x.graph().add(Op::kRmsNorm, {x, weight}, NormAttributes{eps, 0}, x.type());
}
Gradients rms_norm_gradient(const GradientContext& c) {
  const Value x = c.inputs[0], weight = c.inputs[1];
  const ValueType types[] = {x.type(), weight.type()};
  const Value inputs[] = {c.dy, x, weight};
  const auto grads = x.graph().add(Op::kRmsNormGrad, inputs, c.attributes, types);
  return {grads[0], grads[1]};
}

Value layer_norm(Value x, float eps) {
  return x.graph().add(Op::kLayerNorm, {x}, NormAttributes{eps, 0}, x.type());
}
Gradients layer_norm_gradient(const GradientContext& c) {
  const Value x = c.inputs[0];
  return {x.graph().add(Op::kLayerNormGrad, {c.dy, x}, c.attributes, x.type())};
}

Value group_norm(Value x, Value weight, Value bias, int groups, float eps, bool channels_last) {
  const int axis = channels_last ? 3 : 1;
  require(x.rank() == 4 && groups > 0 && x.dim(axis) % groups == 0,
          "group_norm: {} groups of channels of {}", groups, x.shape());
  require(weight.shape() == Shape{x.dim(axis)} && bias.shape() == weight.shape(),
          "group_norm: weight {} and bias {} do not fit {}", weight.shape(), bias.shape(),
          x.shape());
  return x.graph().add(Op::kGroupNorm, {x, weight, bias},
                       NormAttributes{eps, groups, channels_last}, x.type());
}
Gradients group_norm_gradient(const GradientContext& c) {
  const Value x = c.inputs[0], weight = c.inputs[1], bias = c.inputs[2];
  const ValueType types[] = {x.type(), weight.type(), bias.type()};
  const Value inputs[] = {c.dy, x, weight};
  const auto grads = x.graph().add(Op::kGroupNormGrad, inputs, c.attributes, types);
  return {grads[0], grads[1], grads[2]};
}

}  // namespace halftone
