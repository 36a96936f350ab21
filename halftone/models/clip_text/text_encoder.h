// CLIP's text encoder, of OpenAI's models and of OpenCLIP's: states after any of its layers, and
// one vector for the whole prompt.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone::clip_text {

struct Config {
  int64_t vocab_size = 49408;
  int64_t hidden_size = 768;
  int64_t intermediate_size = 3072;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t positions = 77;
  Function activation = Function::kQuickGelu;
  float norm_eps = 1e-5f;
  int64_t projection = 768;  // width of a projected vector
  // Ends a prompt. 2 stands in files of older versions of transformers, where it means the largest
  // id, whichever that is.
  int32_t eos = 49407;
};
Config clip_l();  // OpenAI's CLIP ViT-L/14
Config big_g();   // OpenCLIP's ViT-bigG/14
Config parse_config(const nlohmann::json& json, const std::string& where);

struct Options {
  DType activations = DType::kF32;
  bool tap_layers = false;  // make every layer's result an output, for tests
  // States after this many layers: all, all but one (clip skip), ... None: no states.
  std::optional<int64_t> states_after;
  // The state at the prompt's end, after all layers and the last norm; through text_projection
  // where that is wanted.
  bool pooled = true;
  bool projected = false;
};

// Layers that are needed for what is asked for.
int64_t layers_run(const Config& config, const Options& options);

// Inputs: ids I32 [B, T], T at most `positions`; with pooled, ends I32 [B, 1]. Outputs, F32: states
// [B, T, hidden_size]; pooled [B, hidden_size or projection]. Attention is causal.
std::shared_ptr<Graph> build_text_encoder(const Config& config, int64_t batch, int64_t tokens,
                                          const Options& options);

// Inputs for prompts of `tokens` ids each, padding included. A prompt without an end is an Error.
std::map<std::string, Tensor> text_inputs(const Config& config, const Options& options,
                                          int64_t tokens,
                                          std::span<const std::vector<int32_t>> prompts);

// The position of the id that ends a prompt: the first of them, as padding may be the same.
int64_t end_of(const Config& config, std::span<const int32_t> ids);

}  // namespace halftone::clip_text
