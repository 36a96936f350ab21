// Small builders that models are written with: each finds its weights by name and adds a few nodes.
#pragma once

#include <optional>

#include "halftone/graph/ops.h"
#include "halftone/nn/scope.h"

namespace halftone::nn {

enum class Bias { kNo, kYes };

// scope.weight [out, in], scope.bias [out]
Value linear(const Scope& scope, Value x, int64_t out, Bias bias);
// scope.weight [last dimension]
Value rms_norm(const Scope& scope, Value x, float eps);
// scope.weight and bias [last dimension]
Value layer_norm(const Scope& scope, Value x, float eps);
// scope.w1, w2, w3: w2(silu(w1 x) * w3 x)
Value swiglu(const Scope& scope, Value x, int64_t hidden);

// silu(first half) * second half of the last dimension: a gate and what it lets through that come
// from one product.
Value silu_gate(Value x);

// Rotation tables of every token: [B, T, D/2].
struct RopeTables {
  Value cosine, sine;
  RopeTables slice(int64_t begin, int64_t end) const {
    return {halftone::slice(cosine, 1, begin, end), halftone::slice(sine, 1, begin, end)};
  }
};

// cos(t f_i), sin(t f_i) with f_i = max_period^(-i / (dim/2)): t [B] -> [B, dim]
Value time_features(Value t, int64_t dim, float max_period);

}  // namespace halftone::nn
