// The configuration of a FLUX.2 transformer, as config.json has it. Defaults are klein 4B's.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace halftone::flux2 {

struct TransformerConfig {
  int64_t in_channels = 128;  // of the sampler's latents: 32 in patches of 2 x 2
  int64_t layers = 5;         // blocks with a stream each for text and image
  int64_t single_layers = 20;
  int64_t heads = 24;
  int64_t head_dim = 128;
  int64_t joint_dim = 7680;     // of the text's states
  int64_t time_channels = 256;  // features of the time
  double mlp_ratio = 3;
  std::array<int64_t, 4> axes_dims = {32, 32, 32, 32};  // of (t, h, w, l)
  double rope_theta = 2000;
  float eps = 1e-6f;

  int64_t dim() const { return heads * head_dim; }
  int64_t hidden() const { return static_cast<int64_t>(static_cast<double>(dim()) * mlp_ratio); }
};

// What does not fit together is an Error that names the field. `where` is the file.
TransformerConfig parse_transformer_config(const nlohmann::json& json, const std::string& where);

}  // namespace halftone::flux2
