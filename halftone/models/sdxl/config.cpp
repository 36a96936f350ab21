#include "halftone/models/sdxl/config.h"

#include <nlohmann/json.hpp>

#include "halftone/io/config_reader.h"

namespace halftone::sdxl {
namespace {

constexpr int64_t kMost = 1 << 16;

// One number for all levels, or a list with one for each.
std::vector<int64_t> by_level(const ConfigReader& read, const char* name, int64_t fallback,
                              size_t levels) {
  if (!read.field(name).is_array()) {
    return std::vector<int64_t>(levels, read.integer(name, fallback, 1, kMost));
  }
  auto values = read.integers(name, {}, /*most_items=*/8, kMost);
  if (values.size() != levels) {
    read.fail(name, "has not as many entries as 'block_out_channels'");
  }
  return values;
}

std::vector<bool> which_attend(const ConfigReader& read, const char* name, const char* attending,
                               const char* plain, size_t levels) {
  const auto& types = read.list(name);
  if (types.size() != levels) read.fail(name, "has not as many entries as 'block_out_channels'");
  std::vector<bool> attend;
  for (const auto& type : types) {
    if (type != attending && type != plain) {
      read.fail(name, fmt::format("holds a block that is neither {} nor {}", attending, plain));
    }
    attend.push_back(type == attending);
  }
  return attend;
}

// What other U-Nets have, and this one has not.
void check_unsupported(const ConfigReader& read) {
  read.must_be("act_fn", "silu");
  read.must_be("addition_embed_type", "text_time");
  read.must_be("center_input_sample", false);
  read.must_be("conv_in_kernel", 3);
  read.must_be("conv_out_kernel", 3);
  read.must_be("downsample_padding", 1);
  read.must_be("flip_sin_to_cos", true);
  read.must_be("freq_shift", 0);
  read.must_be("mid_block_scale_factor", 1);
  read.must_be("mid_block_type", "UNetMidBlock2DCrossAttn");
  read.must_be("resnet_out_scale_factor", 1.0);
  read.must_be("resnet_time_scale_shift", "default");
  read.must_be("time_embedding_type", "positional");
  read.must_be("attention_type", "default");
  read.must_be_empty({"class_embed_type", "class_embeddings_concat", "cross_attention_norm",
                      "dual_cross_attention", "encoder_hid_dim", "encoder_hid_dim_type",
                      "mid_block_only_cross_attention", "num_attention_heads", "num_class_embeds",
                      "only_cross_attention", "resnet_skip_time_act",
                      "reverse_transformer_layers_per_block", "time_cond_proj_dim",
                      "time_embedding_act_fn", "time_embedding_dim", "timestep_post_act"});
  // How weights are stored their tensors tell. The size that it was trained on, in which precision
  // scores are formed, and what is of training or of other kinds of embeddings.
  read.ignore({"dtype", "torch_dtype", "quantization_config", "sample_size", "upcast_attention",
               "dropout", "addition_embed_type_num_heads"});
}

void check_groups_and_heads(const ConfigReader& read, const UnetConfig& c) {
  for (size_t i = 0; i < c.levels(); ++i) {
    if (c.channels[i] % c.groups != 0) {
      read.fail("norm_num_groups", "does not divide 'block_out_channels'");
    }
    // The lowest level attends in the middle, too.
    const bool attends =
        c.down_attends[i] || c.up_attends[c.levels() - 1 - i] || i + 1 == c.levels();
    if (attends && c.channels[i] % c.heads[i] != 0) {
      read.fail("attention_head_dim", "does not divide 'block_out_channels'");
    }
  }
}

}  // namespace

UnetConfig parse_unet_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  UnetConfig c;
  read.must_be("_class_name", "UNet2DConditionModel");
  // diffusers' own defaults are those of another model.
  read.require({"addition_embed_type", "addition_time_embed_dim", "block_out_channels",
                "cross_attention_dim", "down_block_types", "projection_class_embeddings_input_dim",
                "up_block_types", "use_linear_projection"});
  check_unsupported(read);
  read.must_be("use_linear_projection", true);
  c.in_channels = read.integer("in_channels", c.in_channels, 1, 4096);
  if (read.integer("out_channels", 4, 1, kMost) != c.in_channels) {
    read.fail("out_channels", "is not 'in_channels'");
  }
  c.channels = read.integers("block_out_channels", {}, /*most_items=*/8, kMost);
  c.down_attends =
      which_attend(read, "down_block_types", "CrossAttnDownBlock2D", "DownBlock2D", c.levels());
  c.up_attends =
      which_attend(read, "up_block_types", "CrossAttnUpBlock2D", "UpBlock2D", c.levels());
  // A misnomer: it is how many there are.
  c.heads = by_level(read, "attention_head_dim", 8, c.levels());
  c.transformer_layers = by_level(read, "transformer_layers_per_block", 1, c.levels());
  c.layers_per_block = read.integer("layers_per_block", 2, 1, 100);
  c.groups = static_cast<int>(read.integer("norm_num_groups", c.groups, 1, kMost));
  c.norm_eps = static_cast<float>(read.number("norm_eps", 1e-5, 1e-12, 1));
  c.text_dim = read.integer("cross_attention_dim", 0, 1, 1 << 20);
  c.size_features = read.integer("addition_time_embed_dim", 0, 2, kMost);
  if (c.size_features % 2 != 0) read.fail("addition_time_embed_dim", "is not even");
  const int64_t all = read.integer("projection_class_embeddings_input_dim", 0, 1, 1 << 20);
  c.pooled_dim = all - UnetConfig::kSizes * c.size_features;
  if (c.pooled_dim < 1) {
    read.fail("projection_class_embeddings_input_dim", "leaves nothing for the text's vector");
  }
  read.finish();
  if (c.channels[0] % 2 != 0) read.fail("block_out_channels", "begins with an odd number");
  check_groups_and_heads(read, c);
  return c;
}

}  // namespace halftone::sdxl
