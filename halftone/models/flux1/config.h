// The configuration of a FLUX.1 transformer, as config.json has it. Defaults are those of dev.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace halftone::flux1 {

struct TransformerConfig {
  static constexpr int64_t kPatch = 2;           // positions of latents that make a token, each way
  static constexpr int64_t kTimeFeatures = 256;  // fixed in the class

  int64_t in_channels = 64;  // of a token: 16 of the latents in patches of 2 x 2
  int64_t layers = 19;       // blocks with a stream each for text and image
  int64_t single_layers = 38;
  int64_t heads = 24;
  int64_t head_dim = 128;
  int64_t joint_dim = 4096;                         // of the text's states
  int64_t pooled_dim = 768;                         // of the text's pooled vector
  bool guidance = true;                             // reads the strength of guidance: dev
  std::array<int64_t, 3> axes_dims = {16, 56, 56};  // of (picture, h, w)

  int64_t dim() const { return heads * head_dim; }
  int64_t hidden() const { return 4 * dim(); }
  int64_t latent_channels() const { return in_channels / (kPatch * kPatch); }
};

// What does not fit together is an Error that names the field. `where` is the file.
TransformerConfig parse_transformer_config(const nlohmann::json& json, const std::string& where);

}  // namespace halftone::flux1
