// AutoencoderKL: pictures [B, 3, H, W] in [-1, 1] to latents and back.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone::autoencoder_kl {

struct Config {
  int64_t latent_channels = 16;
  std::vector<int64_t> channels = {128, 256, 512, 512};  // block_out_channels
  int64_t layers_per_block = 2;
  int groups = 32;
  float scaling_factor = 0.3611f, shift_factor = 0.1159f;
  bool mid_attention = true;
  bool quant_conv = false, post_quant_conv = false;

  int64_t scale() const { return int64_t{1} << (channels.size() - 1); }  // pixels per latent
};
Config parse_config(const nlohmann::json& json, const std::string& where);

struct Options {
  DType activations = DType::kF32;
};

// Input latents [B, C, h, w] as the sampler leaves them; output image [B, 3, H, W].
std::shared_ptr<Graph> build_decoder(const Config& config, int64_t batch, int64_t height,
                                     int64_t width, const Options& options);

// Input image [B, 3, H, W]; outputs mean and logvar [B, C, h, w] of the latent distribution, and
// latents, the mean as the sampler takes it.
std::shared_ptr<Graph> build_encoder(const Config& config, int64_t batch, int64_t height,
                                     int64_t width, const Options& options);

}  // namespace halftone::autoencoder_kl
