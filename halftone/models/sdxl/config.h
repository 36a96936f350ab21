// The configuration of SDXL's U-Net, as config.json has it. Defaults are those of base 1.0.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace halftone::sdxl {

struct UnetConfig {
  static constexpr int64_t kSizes = 6;  // numbers that a picture's sizes are told as

  int64_t in_channels = 4;  // of the latents
  // By level, from the latents' resolution down; each has half the resolution of the one before.
  std::vector<int64_t> channels = {320, 640, 1280};
  std::vector<int64_t> heads = {5, 10, 20};
  std::vector<int64_t> transformer_layers = {1, 2, 10};
  std::vector<bool> down_attends = {false, true, true};  // levels with transformers
  std::vector<bool> up_attends = {true, true, false};    // from the lowest resolution up
  int64_t layers_per_block = 2;                          // ResNets on the way down; one more up
  int groups = 32;                                       // of GroupNorm
  float norm_eps = 1e-5f;                                // of ResNets
  int64_t text_dim = 2048;                               // of the text's states
  int64_t pooled_dim = 1280;                             // of the text's pooled vector
  int64_t size_features = 256;                           // of each of the numbers

  size_t levels() const { return channels.size(); }
  int64_t time_features() const { return channels[0]; }
  int64_t time_dim() const { return 4 * channels[0]; }
  // Sides of latents are multiples of it: every level halves them.
  int64_t multiple() const { return int64_t{1} << (levels() - 1); }
};

// What does not fit together is an Error that names the field. `where` is the file.
UnetConfig parse_unet_config(const nlohmann::json& json, const std::string& where);

}  // namespace halftone::sdxl
