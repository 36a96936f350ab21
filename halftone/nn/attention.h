// What attention of transformers is made of, besides the projections that each of them names in a
// way of its own.
#pragma once

#include <optional>

#include "halftone/nn/layers.h"

namespace halftone::nn {

// [B, T, H * D] -> [B, T, H, D]
Value split_heads(Value x, int64_t head_dim);

// A query or key [B, T, H, D] as it is compared: normed by head, then rotated to its position.
Value norm_and_rotate(const Scope& norm, Value x, float eps, const RopeTables& rope,
                      RopeLayout layout);

struct AttendOptions {
  std::optional<Value> lengths;  // I32 [B]: keys that row b sees; all where there are none
  bool causal = false;
  std::optional<Value> bias;   // of scores, as attention has it
  std::optional<float> scale;  // of scores; 1 / sqrt(D) without one
};
// softmax(scale q k^T + bias) v, heads side by side again: [B, T, H * D]
Value attend(Value q, Value k, Value v, const AttendOptions& options = {});

}  // namespace halftone::nn
