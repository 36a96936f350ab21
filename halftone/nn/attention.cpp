#include "halftone/nn/attention.h"

#include <cmath>

namespace halftone::nn {

Value split_heads(Value x, int64_t head_dim) {
  return reshape(x, {x.dim(0), x.dim(1), x.dim(2) / head_dim, head_dim});
}

Value norm_and_rotate(const Scope& norm, Value x, float eps, const RopeTables& rope,
                      RopeLayout layout) {
  return halftone::rope(rms_norm(norm, x, eps), rope.cosine, rope.sine, {layout, false});
}

Value attend(Value q, Value k, Value v, const AttendOptions& options) {
  const float scale = options.scale.value_or(1.0f / std::sqrt(static_cast<float>(q.dim(3))));
  const Value y = attention(q, k, v, options.lengths, {scale, options.causal}, options.bias);
  return reshape(y, {q.dim(0), q.dim(1), q.dim(2) * q.dim(3)});
}

}  // namespace halftone::nn
