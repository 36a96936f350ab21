#include "halftone/models/flux2/config.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "halftone/io/config_reader.h"

namespace halftone::flux2 {

TransformerConfig parse_transformer_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  TransformerConfig c;
  constexpr int64_t kMost = 1 << 16;
  read.must_be("_class_name", "Flux2Transformer2DModel");
  read.must_be("patch_size", 1);
  // diffusers' own defaults are those of another model of the family, with a guidance embedding.
  read.require({"num_layers", "num_single_layers", "num_attention_heads", "joint_attention_dim",
                "guidance_embeds"});
  read.must_be("guidance_embeds", false);
  c.in_channels = read.integer("in_channels", c.in_channels, 1, 4096);
  if (read.integer("out_channels", c.in_channels, 1, kMost) != c.in_channels) {
    read.fail("out_channels", "is not 'in_channels'");
  }
  c.layers = read.integer("num_layers", c.layers, 0, 1000);
  c.single_layers = read.integer("num_single_layers", c.single_layers, 0, 1000);
  c.heads = read.integer("num_attention_heads", c.heads, 1, 1024);
  c.head_dim = read.integer("attention_head_dim", c.head_dim, 2, 4096);
  c.joint_dim = read.integer("joint_attention_dim", c.joint_dim, 1, 1 << 20);
  c.time_channels = read.integer("timestep_guidance_channels", c.time_channels, 2, kMost);
  c.mlp_ratio = read.number("mlp_ratio", c.mlp_ratio, 0.01, 64);
  c.rope_theta = read.number("rope_theta", c.rope_theta, 1, 1e12);
  c.eps = static_cast<float>(read.number("eps", c.eps, 1e-12, 1));
  const auto axes =
      read.integers("axes_dims_rope", {c.axes_dims.begin(), c.axes_dims.end()}, 8, kMost);
  if (axes.size() != c.axes_dims.size()) read.fail("axes_dims_rope", "is not a list of four");
  std::copy(axes.begin(), axes.end(), c.axes_dims.begin());
  // How weights are stored and quantized their tensors tell.
  read.ignore({"dtype", "torch_dtype", "quantization_config"});
  read.finish();
  if (c.dim() > kMost) read.fail("num_attention_heads", "makes the model wider than 65536");
  if (c.hidden() < 1) read.fail("mlp_ratio", "leaves the MLP without a unit");
  if (c.time_channels % 2 != 0) read.fail("timestep_guidance_channels", "is odd");
  const int64_t rotated = std::accumulate(axes.begin(), axes.end(), int64_t{0});
  if (rotated != c.head_dim) {
    read.fail("axes_dims_rope",
              fmt::format("adds up to {}, not to 'attention_head_dim' {}", rotated, c.head_dim));
  }
  for (const int64_t d : axes) {
    if (d % 2 != 0) read.fail("axes_dims_rope", "holds an odd number");
  }
  return c;
}

}  // namespace halftone::flux2
