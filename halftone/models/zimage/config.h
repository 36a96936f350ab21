// The configuration of a Z-Image transformer, as config.json has it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace halftone::zimage {

struct TransformerConfig {
  int64_t patch_size = 2;
  int64_t in_channels = 16;
  int64_t dim = 3840;
  int64_t layers = 30;
  int64_t refiner_layers = 2;
  int64_t heads = 30;
  float norm_eps = 1e-5f;
  int64_t cap_feat_dim = 2560;
  double rope_theta = 256;
  float t_scale = 1000;
  std::array<int64_t, 3> axes_dims = {32, 48, 48};
  std::array<int64_t, 3> axes_lens = {1024, 512, 512};

  int64_t head_dim() const { return dim / heads; }
  int64_t hidden() const { return dim * 8 / 3; }
  int64_t modulation_dim() const { return dim < 256 ? dim : 256; }
};

// Fields that are missing take their defaults; what does not fit together is an Error that names
// the field. `where` is the file.
TransformerConfig parse_transformer_config(const nlohmann::json& json, const std::string& where);

}  // namespace halftone::zimage
