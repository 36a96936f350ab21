#include "halftone/models/flux1/config.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "halftone/io/config_reader.h"

namespace halftone::flux1 {

TransformerConfig parse_transformer_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  TransformerConfig c;
  constexpr int64_t kMost = 1 << 16;
  read.must_be("_class_name", "FluxTransformer2DModel");
  read.must_be("patch_size", 1);  // of tokens; latents become tokens of 2 x 2 before
  c.in_channels = read.integer("in_channels", c.in_channels, 4, 4096);
  // Fill, Canny and Depth read other pictures beside the latents.
  if (read.integer("out_channels", c.in_channels, 1, kMost) != c.in_channels) {
    read.fail("in_channels",
              "is not 'out_channels': models that read a picture (Fill, Canny, Depth) are not "
              "supported yet");
  }
  if (c.in_channels % 4 != 0) read.fail("in_channels", "is no multiple of 4");
  c.layers = read.integer("num_layers", c.layers, 0, 1000);
  c.single_layers = read.integer("num_single_layers", c.single_layers, 0, 1000);
  c.heads = read.integer("num_attention_heads", c.heads, 1, 1024);
  c.head_dim = read.integer("attention_head_dim", c.head_dim, 2, 4096);
  c.joint_dim = read.integer("joint_attention_dim", c.joint_dim, 1, 1 << 20);
  c.pooled_dim = read.integer("pooled_projection_dim", c.pooled_dim, 1, 1 << 20);
  c.guidance = read.boolean("guidance_embeds", false);
  const auto axes =
      read.integers("axes_dims_rope", {c.axes_dims.begin(), c.axes_dims.end()}, 8, kMost);
  if (axes.size() != c.axes_dims.size()) read.fail("axes_dims_rope", "is not a list of three");
  std::copy(axes.begin(), axes.end(), c.axes_dims.begin());
  // How weights are stored and quantized their tensors tell.
  read.ignore({"dtype", "torch_dtype", "quantization_config"});
  read.finish();
  if (c.dim() > kMost) read.fail("num_attention_heads", "makes the model wider than 65536");
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

}  // namespace halftone::flux1
