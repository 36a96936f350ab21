// Qwen3 as a text encoder: the hidden states before the last layer, which is never run.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "halftone/graph/graph.h"

namespace halftone::qwen3 {

struct Config {
  int64_t vocab_size = 151936;
  int64_t hidden_size = 2560;
  int64_t intermediate_size = 9728;
  int64_t layers = 36;
  int64_t heads = 32;
  int64_t kv_heads = 8;
  int64_t head_dim = 128;
  float norm_eps = 1e-6f;
  double rope_theta = 1e6;
};
Config parse_config(const nlohmann::json& json, const std::string& where);

struct Options {
  DType activations = DType::kF32;
  bool tap_layers = false;  // make every layer's result an output, for tests
};

// Inputs: ids I32 [B, T]; rope.cosine and rope.sine [B, T, head_dim / 2]. Output: states
// [B, T, hidden_size], F32. Attention is causal, so what follows a prompt's last token changes
// nothing before it, and T may be larger than the prompt.
std::shared_ptr<Graph> build_text_encoder(const Config& config, int64_t batch, int64_t tokens,
                                          const Options& options);

// Inputs for prompts of at most `tokens` ids each.
std::map<std::string, Tensor> text_inputs(const Config& config, int64_t tokens,
                                          std::span<const std::vector<int32_t>> prompts);

}  // namespace halftone::qwen3
