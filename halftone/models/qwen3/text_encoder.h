// Qwen3 as a text encoder: hidden states before the last layer, or after layers that are chosen.
// Layers that nothing needs are never run.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

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
  // The states after this many layers each (fewer than all: the last one's go through a norm that
  // is not here), side by side for every token in this order. Empty: those before the last layer.
  std::vector<int64_t> states_after;
  // Takes lengths as an input. Needed where what follows a prompt is used too: without them it
  // attends to itself.
  bool lengths = false;
};

// Layers that are needed for the states that are asked for.
int64_t layers_run(const Config& config, const Options& options);

// Inputs: ids I32 [B, T]; rope.cosine and rope.sine [B, T, head_dim / 2]; with the option, lengths
// I32 [B]. Output: states [B, T, hidden_size times those chosen], F32. Attention is causal, so what
// follows a prompt's last token changes nothing before it, and T may be larger than the prompt.
std::shared_ptr<Graph> build_text_encoder(const Config& config, int64_t batch, int64_t tokens,
                                          const Options& options);

// Inputs for prompts of at most `tokens` ids each. `pad` follows them where it matters, and then
// lengths are among the inputs.
std::map<std::string, Tensor> text_inputs(const Config& config, int64_t tokens,
                                          std::span<const std::vector<int32_t>> prompts,
                                          std::optional<int32_t> pad = std::nullopt);

}  // namespace halftone::qwen3
