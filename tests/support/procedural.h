// Weights and inputs that are a pure function of their name: the twin of
// tools/golden/procedural.py, which fixtures were made with.
#pragma once

#include <cmath>
#include <string>
#include <string_view>

#include "halftone/base/random.h"
#include "halftone/graph/graph.h"
#include "halftone/numerics/bf16.h"
#include "halftone/runtime/program.h"

namespace halftone::test {

inline uint64_t fnv1a(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return hash;
}

// float32 in [-1, 1), times scale.
inline Tensor procedural_uniform(std::string_view name, const Shape& shape, float scale = 1) {
  Tensor tensor = Tensor::empty(DType::kF32, shape);
  const PhiloxKey key{fnv1a(name), 0};
  auto values = tensor.mutable_as<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (static_cast<float>(philox_word(key, i) >> 8) * 0x1p-23f - 1.0f) * scale;
  }
  return tensor;
}

// bf16, as a checkpoint would store it.
inline Tensor procedural_weight(const std::string& name, const Shape& shape) {
  const Tensor u = procedural_uniform(name, shape);
  Tensor tensor = Tensor::empty(DType::kBF16, shape);
  auto out = tensor.mutable_as<bf16>();
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const bool unit = has("pad_token") || has("embed_tokens");
  float gain = 1;
  if (!unit && shape.rank() > 1) {
    gain = std::sqrt(3.0f / static_cast<float>(shape.numel() / shape[0]));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const float v = u.as<float>()[i];
    if (unit || shape.rank() > 1) {
      out[i] = to_bf16(v * gain);
    } else {
      out[i] = to_bf16(name.ends_with("weight") ? 1.0f + 0.3f * v : 0.2f * v);
    }
  }
  return tensor;
}

inline Weights procedural_weights(const Graph& graph) {
  Weights weights;
  for (const auto& [name, value] : graph.weights()) {
    weights.emplace(name, procedural_weight(name, value.shape()));
  }
  return weights;
}

}  // namespace halftone::test
