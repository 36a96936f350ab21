#include "halftone/models/autoencoder_kl/autoencoder.h"

#include "halftone/base/error.h"
#include "halftone/nn/attention.h"
#include "halftone/nn/pictures.h"

namespace halftone::autoencoder_kl {
namespace {

using nn::Bias;
using nn::Scope;

constexpr float kEps = 1e-6f;

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
    Value x = cast(from_sampler(latents), options_.activations);
    if (c_.post_quant_conv) x = conv1x1(root_["post_quant_conv"], x, c_.latent_channels);
    const Scope s = root_["decoder"];
    const auto& channels = c_.decoder_channels.empty() ? c_.channels : c_.decoder_channels;
    x = conv3x3(s["conv_in"], x, channels.back());
    x = middle(s["mid_block"], x);
    for (size_t i = 0; i < channels.size(); ++i) {
      const Scope block = s["up_blocks"][std::to_string(i)];
      const auto region = root_.graph().region("vae_up", block.name());
      const int64_t out = channels[channels.size() - 1 - i];
      x = resnets(block, x, out, c_.layers_per_block + 1);
      const bool last = i + 1 == channels.size();
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
    root_.graph().output("latents", to_sampler(parts[0]));
  }

 private:
  bool is_scaled() const { return c_.scaling_factor != 1 || c_.shift_factor != 0; }

  // Of latents as the sampler has them.
  Value constant(const std::string& name, const std::vector<float>& values, bool reciprocal) {
    Tensor tensor = Tensor::empty(DType::kF32, {1, c_.sampler_channels(), 1, 1});
    HT_ASSERT(tensor.numel() == static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      tensor.mutable_as<float>()[i] = reciprocal ? 1 / values[i] : values[i];
    }
    return root_.graph().constant(name, tensor);
  }

  Value from_sampler(Value x) {
    if (!c_.latents_std.empty()) {
      x = x * constant("latents deviation", c_.latents_std, false) +
          constant("latents mean", c_.latents_mean, false);
    }
    if (c_.patch_size > 1) x = nn::unpatchify(x, c_.patch_size);
    return is_scaled() ? affine(x, 1 / c_.scaling_factor, c_.shift_factor) : x;
  }

  Value to_sampler(Value x) {
    if (is_scaled()) x = affine(x, c_.scaling_factor, -c_.shift_factor * c_.scaling_factor);
    if (c_.patch_size > 1) x = nn::patchify(x, c_.patch_size);
    if (c_.latents_std.empty()) return x;
    return (x - constant("latents mean", c_.latents_mean, false)) *
           constant("latents deviation", c_.latents_std, true);
  }

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
    const int64_t channels = x.dim(1);
    const Value tokens = nn::tokens_of(norm(s["group_norm"], x));
    const auto project = [&](const char* name) {
      return nn::split_heads(nn::linear(s[name], tokens, channels, Bias::kYes), channels);
    };
    const Value q = project("to_q"), k = project("to_k"), v = project("to_v");
    const Value y = nn::linear(s["to_out"]["0"], nn::attend(q, k, v), channels, Bias::kYes);
    return x + nn::picture_of(y, x.dim(2), x.dim(3));
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

std::shared_ptr<Graph> build_decoder(const Config& config, int64_t batch, int64_t height,
                                     int64_t width, const Options& options) {
  auto graph = std::make_shared<Graph>();
  const Shape shape{batch, config.sampler_channels(), height, width};
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
