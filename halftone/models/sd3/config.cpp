#include "halftone/models/sd3/config.h"

#include <nlohmann/json.hpp>

#include "halftone/io/config_reader.h"

namespace halftone::sd3 {

TransformerConfig parse_transformer_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  TransformerConfig c;
  constexpr int64_t kMost = 1 << 16;
  read.must_be("_class_name", "SD3Transformer2DModel");
  // diffusers' own defaults are those of no model that is published.
  read.require({"num_layers", "num_attention_heads", "pos_embed_max_size"});
  read.must_be("patch_size", TransformerConfig::kPatch);
  c.in_channels = read.integer("in_channels", c.in_channels, 1, 4096);
  if (read.integer("out_channels", 16, 1, kMost) != c.in_channels) {
    read.fail("out_channels", "is not 'in_channels'");
  }
  c.layers = read.integer("num_layers", c.layers, 1, 1000);
  c.heads = read.integer("num_attention_heads", c.heads, 1, 1024);
  c.head_dim = read.integer("attention_head_dim", c.head_dim, 1, 4096);
  c.joint_dim = read.integer("joint_attention_dim", c.joint_dim, 1, 1 << 20);
  c.pooled_dim = read.integer("pooled_projection_dim", c.pooled_dim, 1, 1 << 20);
  c.most_positions = read.integer("pos_embed_max_size", c.most_positions, 1, 4096);
  const std::string norm = read.has("qk_norm") ? read.text("qk_norm") : "";
  if (!norm.empty() && norm != "rms_norm") read.fail("qk_norm", "is neither rms_norm nor null");
  c.norm_heads = !norm.empty();
  if (read.has("dual_attention_layers")) {
    const auto& dual = read.field("dual_attention_layers");
    if (!dual.is_array()) read.fail("dual_attention_layers", "is not a list");
    for (const auto& layer : dual) {
      const bool known = layer.is_number_integer() && layer >= 0 && layer < c.layers;
      if (!known) read.fail("dual_attention_layers", "names a layer that there is not");
      c.dual_layers.insert(layer.get<int64_t>());
    }
  }
  // How weights are stored and quantized their tensors tell; the size that it was trained on.
  read.ignore({"dtype", "torch_dtype", "quantization_config", "sample_size"});
  if (read.integer("caption_projection_dim", c.dim(), 1, kMost) != c.dim()) {
    read.fail("caption_projection_dim", "is not the width of the blocks");
  }
  read.finish();
  if (c.dim() > kMost) read.fail("num_attention_heads", "makes the model wider than 65536");
  return c;
}

}  // namespace halftone::sd3
