// T5's encoder, version 1.1: states of all tokens after its last norm.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone::t5 {

struct Config {
  int64_t vocab_size = 32128;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 10240;
  int64_t layers = 24;
  int64_t heads = 64;
  int64_t head_dim = 64;
  // Distances from a query to a key are sorted into so many buckets, half of them for keys that
  // follow; all from `max_distance` on are the last one's.
  int64_t buckets = 32;
  int64_t max_distance = 128;
  // Each layer has a bias for every bucket; otherwise all share the first layer's.
  bool bias_of_each_layer = false;
  float norm_eps = 1e-6f;
};
Config xxl();  // of version 1.1
Config parse_config(const nlohmann::json& json, const std::string& where);

struct Options {
  DType activations = DType::kF32;
  bool tap_layers = false;  // make every layer's result an output, for tests
  bool lengths = false;     // takes lengths as an input: what follows a prompt is not attended to
};

// Inputs: ids I32 [B, T]; with the option, lengths I32 [B]. Output: states [B, T, hidden_size],
// F32.
std::shared_ptr<Graph> build_text_encoder(const Config& config, int64_t batch, int64_t tokens,
                                          const Options& options);

// Inputs for prompts of at most `tokens` ids each; the token 0 fills them up.
std::map<std::string, Tensor> text_inputs(const Config& config, const Options& options,
                                          int64_t tokens,
                                          std::span<const std::vector<int32_t>> prompts);

// The bucket of a key that is so many tokens behind the query, or, where negative, before it.
int64_t bucket_of(const Config& config, int64_t distance);

}  // namespace halftone::t5
