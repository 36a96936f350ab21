#include "halftone/nn/layers.h"

#include <cmath>

namespace halftone::nn {

Value linear(const Scope& scope, Value x, int64_t out, Bias bias) {
  const Value weight = scope.weight("weight", {out, x.dim(-1)});
  if (bias == Bias::kNo) return halftone::linear(x, weight);
  return halftone::linear(x, weight, scope.weight("bias", {out}));
}

Value rms_norm(const Scope& scope, Value x, float eps) {
  return halftone::rms_norm(x, scope.weight("weight", {x.dim(-1)}), eps);
}

Value layer_norm(const Scope& scope, Value x, float eps) {
  const Shape width{x.dim(-1)};
  return halftone::layer_norm(x, eps) * scope.weight("weight", width) + scope.weight("bias", width);
}

Value swiglu(const Scope& scope, Value x, int64_t hidden) {
  const Value gate = linear(scope["w1"], x, hidden, Bias::kNo);
  const Value up = linear(scope["w3"], x, hidden, Bias::kNo);
  return linear(scope["w2"], silu_mul(gate, up), x.dim(-1), Bias::kNo);
}

Value silu_gate(Value x) {
  const auto halves = split(x, 2, x.rank() - 1);
  return silu_mul(halves[0], halves[1]);
}

Value time_features(Value t, int64_t dim, float max_period) {
  const int64_t half = dim / 2;
  Tensor frequencies = Tensor::empty(DType::kF32, {half});
  const auto decay = static_cast<float>(-std::log(max_period));
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = decay * static_cast<float>(i) / static_cast<float>(half);
    frequencies.mutable_as<float>()[i] = std::exp(exponent);
  }
  const Value angles =
      reshape(t, {t.dim(0), 1}) * t.graph().constant("time frequencies", frequencies);
  return concat({apply(Function::kCos, angles), apply(Function::kSin, angles)}, 1);
}

}  // namespace halftone::nn
