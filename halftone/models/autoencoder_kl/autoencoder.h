// AutoencoderKL, and FLUX.2's variant of it: pictures [B, 3, H, W] in [-1, 1] to latents and back.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"
#include "halftone/io/checkpoint.h"
#include "halftone/models/weights.h"

namespace halftone::autoencoder_kl {

inline constexpr int64_t kColours = 3;  // of a picture: red, green, blue

struct Config {
  int64_t latent_channels = 16;
  std::vector<int64_t> channels = {128, 256, 512, 512};  // block_out_channels
  int64_t layers_per_block = 2;
  int groups = 32;
  float scaling_factor = 0.3611f, shift_factor = 0.1159f;
  bool mid_attention = true;
  bool quant_conv = false, post_quant_conv = false;
  // Of FLUX.2: a decoder with widths of its own, and latents that the sampler has as patches, each
  // of their channels normed by statistics that the weights come with.
  std::vector<int64_t> decoder_channels;  // empty: as the encoder's
  int64_t patch_size = 1;
  float statistics_eps = 0;
  std::vector<float> latents_mean, latents_std;  // of the sampler's channels; empty: 0 and 1

  int64_t scale() const { return patch_size << (channels.size() - 1); }  // pixels per latent
  int64_t sampler_channels() const { return latent_channels * patch_size * patch_size; }
};
Config parse_config(const nlohmann::json& json, const std::string& where);

struct Options {
  DType activations = DType::kF32;
};

// AutoencoderKLFlux2's config.json. Its statistics are in the checkpoint: see read_statistics.
Config parse_flux2_config(const nlohmann::json& json, const std::string& where);
// The mean and the deviation of latents from bn.running_mean and bn.running_var. Missing or
// mis-shaped ones, and variances that are no positive numbers, are Errors.
void read_statistics(Config& config, const Checkpoint& checkpoint);
// For load_weights: the statistics, which no graph has as weights, are no surprise.
WeightNames flux2_weight_names();

// Input latents [B, C, h, w] as the sampler leaves them; output image [B, 3, H, W].
std::shared_ptr<Graph> build_decoder(const Config& config, int64_t batch, int64_t height,
                                     int64_t width, const Options& options);

// Input image [B, 3, H, W]; outputs mean and logvar of the latent distribution, before patches are
// made of it, and latents [B, C, h, w], the mean as the sampler takes it.
std::shared_ptr<Graph> build_encoder(const Config& config, int64_t batch, int64_t height,
                                     int64_t width, const Options& options);

}  // namespace halftone::autoencoder_kl
