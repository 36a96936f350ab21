#include "halftone/models/zimage/config.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "halftone/io/config_reader.h"
#include "halftone/models/zimage/transformer.h"

namespace halftone::zimage {
TransformerConfig parse_transformer_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  TransformerConfig c;
  constexpr int64_t kMost = 1 << 16;
  read.must_be("_class_name", "ZImageTransformer2DModel");
  c.patch_size = read.single("all_patch_size", c.patch_size);
  if (c.patch_size > 16) read.fail("all_patch_size", "is not in 1 .. 16");
  if (read.single("all_f_patch_size", 1) != 1) read.fail("all_f_patch_size", "is not [1]");
  c.in_channels = read.integer("in_channels", c.in_channels, 1, 1024);
  c.dim = read.integer("dim", c.dim, 1, kMost);
  c.layers = read.integer("n_layers", c.layers, 0, 1000);
  c.refiner_layers = read.integer("n_refiner_layers", c.refiner_layers, 0, 1000);
  c.heads = read.integer("n_heads", c.heads, 1, kMost);
  c.norm_eps = static_cast<float>(read.number("norm_eps", c.norm_eps, 1e-12, 1));
  c.cap_feat_dim = read.integer("cap_feat_dim", c.cap_feat_dim, 1, kMost);
  c.rope_theta = read.number("rope_theta", c.rope_theta, 1, 1e12);
  c.t_scale = static_cast<float>(read.number("t_scale", c.t_scale, 1e-3, 1e6));
  c.axes_dims = read.three("axes_dims", c.axes_dims);
  c.axes_lens = read.three("axes_lens", c.axes_lens);
  if (c.axes_lens[0] < kSequenceMultiple + 2) {
    read.fail("axes_lens",
              fmt::format("begins with {}, and the shortest caption takes {} positions",
                          c.axes_lens[0], kSequenceMultiple + 2));
  }
  read.must_be("qk_norm", true);
  read.must_be_empty({"siglip_feat_dim"});  // of a variant that edits pictures
  // diffusers passes over n_kv_heads; how weights are quantized their tensors tell.
  read.ignore({"n_kv_heads", "dtype", "torch_dtype", "quantization_config"});
  read.finish();
  if (c.dim % c.heads != 0) read.fail("n_heads", "does not divide 'dim'");
  if (c.dim % 3 != 0) read.fail("dim", "is no multiple of 3");
  const int64_t rotated = std::accumulate(c.axes_dims.begin(), c.axes_dims.end(), int64_t{0});
  if (rotated != c.head_dim()) {
    read.fail("axes_dims", fmt::format("adds up to {}, not to the head's {} ('dim' / 'n_heads')",
                                       rotated, c.head_dim()));
  }
  for (const int64_t d : c.axes_dims) {
    if (d % 2 != 0) read.fail("axes_dims", "holds an odd number");
  }
  return c;
}

}  // namespace halftone::zimage
