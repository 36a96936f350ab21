#include "halftone/models/autoencoder_kl/autoencoder.h"

#include <cmath>

#include "halftone/io/config_reader.h"
#include "halftone/nn/layers.h"

namespace halftone::autoencoder_kl {
namespace {

using nn::Bias;
using nn::Scope;

constexpr float kEps = 1e-6f;
constexpr int64_t kColours = 3;  // of a picture: red, green, blue

Value conv(const Scope& s, Value x, int64_t out, int64_t kernel, const ConvAttributes& how) {
  const Value weight = s.weight("weight", {out, x.dim(1), kernel, kernel});
  return conv2d(x, weight, s.weight("bias", {out}), how);
}
Value conv3x3(const Scope& s, Value x, int64_t out) {
  return conv(s, x, out, 3, {1, {1, 1, 1, 1}});
}
Value conv1x1(const Scope& s, Value x, int64_t out) { return conv(s, x, out, 1, {}); }

class Builder {
 public:
  Builder(Graph& graph, const Config& config, const Options& options)
      : root_(graph, ""), c_(config), options_(options) {}

  void decoder(Value latents) {
    Value x = affine(latents, 1 / c_.scaling_factor, c_.shift_factor);
    x = cast(x, options_.activations);
    if (c_.post_quant_conv) x = conv1x1(root_["post_quant_conv"], x, c_.latent_channels);
    const Scope s = root_["decoder"];
    x = conv3x3(s["conv_in"], x, c_.channels.back());
    x = middle(s["mid_block"], x);
    for (size_t i = 0; i < c_.channels.size(); ++i) {
      const Scope block = s["up_blocks"][std::to_string(i)];
      const auto region = root_.graph().region("vae_up", block.name());
      const int64_t out = c_.channels[c_.channels.size() - 1 - i];
      x = resnets(block, x, out, c_.layers_per_block + 1);
      const bool last = i + 1 == c_.channels.size();
      if (!last) x = conv3x3(block["upsamplers"]["0"]["conv"], upsample2x(x), out);
    }
    x = conv3x3(s["conv_out"], silu(norm(s["conv_norm_out"], x)), kColours);
    root_.graph().output("image", cast(x, DType::kF32));
  }

  void encoder(Value image) {
    const Scope s = root_["encoder"];
    Value x = conv3x3(s["conv_in"], cast(image, options_.activations), c_.channels[0]);
    for (size_t i = 0; i < c_.channels.size(); ++i) {
      const Scope block = s["down_blocks"][std::to_string(i)];
      const auto region = root_.graph().region("vae_down", block.name());
      x = resnets(block, x, c_.channels[i], c_.layers_per_block);
      const bool last = i + 1 == c_.channels.size();
      // Padded on the right and below only.
      if (!last) {
        x = conv(block["downsamplers"]["0"]["conv"], x, c_.channels[i], 3, {2, {0, 0, 1, 1}});
      }
    }
    x = middle(s["mid_block"], x);
    x = conv3x3(s["conv_out"], silu(norm(s["conv_norm_out"], x)), 2 * c_.latent_channels);
    if (c_.quant_conv) x = conv1x1(root_["quant_conv"], x, 2 * c_.latent_channels);
    const auto parts = split(cast(x, DType::kF32), 2, 1);
    root_.graph().output("mean", parts[0]);
    root_.graph().output("logvar", parts[1]);
    root_.graph().output("latents",
                         affine(parts[0], c_.scaling_factor, -c_.shift_factor * c_.scaling_factor));
  }

 private:
  Value norm(const Scope& s, Value x) {
    return group_norm(x, s.weight("weight", {x.dim(1)}), s.weight("bias", {x.dim(1)}), c_.groups,
                      kEps);
  }

  Value resnet(const Scope& s, Value x, int64_t out) {
    Value y = conv3x3(s["conv1"], silu(norm(s["norm1"], x)), out);
    y = conv3x3(s["conv2"], silu(norm(s["norm2"], y)), out);
    if (x.dim(1) != out) x = conv1x1(s["conv_shortcut"], x, out);
    return x + y;
  }

  Value resnets(const Scope& s, Value x, int64_t out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x = resnet(s["resnets"][std::to_string(i)], x, out);
    return x;
  }

  // One head over all channels.
  Value attend(const Scope& s, Value x) {
    const int64_t batch = x.dim(0), channels = x.dim(1), height = x.dim(2), width = x.dim(3);
    const Value tokens =
        reshape(permute(norm(s["group_norm"], x), {0, 2, 3, 1}), {batch, height * width, channels});
    const auto project = [&](const char* name) {
      return reshape(nn::linear(s[name], tokens, channels, Bias::kYes),
                     {batch, height * width, 1, channels});
    };
    const float scale = 1.0f / std::sqrt(static_cast<float>(channels));
    const Value y =
        attention(project("to_q"), project("to_k"), project("to_v"), std::nullopt, {scale, false});
    const Value out =
        nn::linear(s["to_out"]["0"], reshape(y, tokens.shape()), channels, Bias::kYes);
    return x + permute(reshape(out, {batch, height, width, channels}), {0, 3, 1, 2});
  }

  Value middle(const Scope& s, Value x) {
    x = resnet(s["resnets"]["0"], x, x.dim(1));
    if (c_.mid_attention) x = attend(s["attentions"]["0"], x);
    return resnet(s["resnets"]["1"], x, x.dim(1));
  }

  Scope root_;
  const Config& c_;
  const Options& options_;
};

}  // namespace

Config parse_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  Config c;
  read.must_be("_class_name", "AutoencoderKL");
  read.must_be("act_fn", "silu");
  read.must_be("in_channels", kColours);
  read.must_be("out_channels", kColours);
  read.must_hold_only("down_block_types", "DownEncoderBlock2D");
  read.must_hold_only("up_block_types", "UpDecoderBlock2D");
  read.must_be_empty({"latents_mean", "latents_std"});
  c.latent_channels = read.integer("latent_channels", 4, 1, 1024);
  c.channels = read.integers("block_out_channels", {64}, /*most_items=*/8, /*most=*/1 << 16);
  c.layers_per_block = read.integer("layers_per_block", 1, 1, 100);
  c.groups = static_cast<int>(read.integer("norm_num_groups", 32, 1, 1 << 16));
  // Latents are divided by it, and multiplied.
  c.scaling_factor = static_cast<float>(read.number("scaling_factor", 0.18215, 1e-6, 1e6));
  c.shift_factor = static_cast<float>(read.number("shift_factor", 0, -1e6, 1e6));
  c.mid_attention = read.boolean("mid_block_add_attention", true);
  c.quant_conv = read.boolean("use_quant_conv", true);
  c.post_quant_conv = read.boolean("use_post_quant_conv", true);
  // What it was trained on, and in which precision diffusers runs it.
  read.ignore({"sample_size", "force_upcast", "dtype", "torch_dtype"});
  read.finish();
  for (const int64_t channels : c.channels) {
    if (channels % c.groups != 0) {
      read.fail("norm_num_groups", "does not divide the channels ('block_out_channels')");
    }
  }
  for (const char* types : {"down_block_types", "up_block_types"}) {
    if (read.has(types) && read.field(types).size() != c.channels.size()) {
      read.fail(types, "has not as many entries as 'block_out_channels'");
    }
  }
  return c;
}

std::shared_ptr<Graph> build_decoder(const Config& config, int64_t batch, int64_t height,
                                     int64_t width, const Options& options) {
  auto graph = std::make_shared<Graph>();
  const Shape shape{batch, config.latent_channels, height, width};
  Builder(*graph, config, options).decoder(graph->input("latents", {shape, DType::kF32, {}}));
  return graph;
}

std::shared_ptr<Graph> build_encoder(const Config& config, int64_t batch, int64_t height,
                                     int64_t width, const Options& options) {
  auto graph = std::make_shared<Graph>();
  const Shape shape{batch, kColours, height, width};
  Builder(*graph, config, options).encoder(graph->input("image", {shape, DType::kF32, {}}));
  return graph;
}

}  // namespace halftone::autoencoder_kl
