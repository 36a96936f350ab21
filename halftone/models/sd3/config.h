// The configuration of a Stable Diffusion 3 transformer, as config.json has it. Defaults are those
// of 3.5 Large.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

namespace halftone::sd3 {

struct TransformerConfig {
  static constexpr int64_t kPatch = 2;           // positions of latents that make a token, each way
  static constexpr int64_t kTimeFeatures = 256;  // fixed in the class

  int64_t in_channels = 16;  // of the latents
  int64_t layers = 38;
  int64_t heads = 38;
  int64_t head_dim = 64;
  int64_t joint_dim = 4096;            // of the text's states
  int64_t pooled_dim = 2048;           // of the text's pooled vector
  int64_t most_positions = 192;        // the table of positions has so many, each way
  bool norm_heads = true;              // queries and keys; not in the first version of Medium
  std::set<int64_t> dual_layers = {};  // where the image attends to itself besides

  int64_t dim() const { return heads * head_dim; }
};

// What does not fit together is an Error that names the field. `where` is the file.
TransformerConfig parse_transformer_config(const nlohmann::json& json, const std::string& where);

}  // namespace halftone::sd3
