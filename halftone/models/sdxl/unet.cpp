#include "halftone/models/sdxl/unet.h"

#include <vector>

#include "halftone/base/error.h"
#include "halftone/models/family.h"
#include "halftone/nn/attention.h"
#include "halftone/nn/block_ends.h"
#include "halftone/nn/pictures.h"

namespace halftone::sdxl {
namespace {

using nn::Bias;
using nn::Scope;

constexpr float kTransformerGroupEps = 1e-6f, kLayerNormEps = 1e-5f;
constexpr float kMaxPeriod = 10000;

class UnetBuilder {
 public:
  UnetBuilder(Graph& graph, const UnetConfig& config, const UnetShape& shape,
              const UnetOptions& options)
      : root_(graph, ""), c_(config), shape_(shape), options_(options) {}

  void build() {
    HT_ASSERT(shape_.height % c_.multiple() == 0 && shape_.width % c_.multiple() == 0);
    const int64_t batch = shape_.batch;
    const Value latents = input("latents", {batch, c_.in_channels, shape_.height, shape_.width});
    text_ = cast(input("text", {batch, shape_.text_tokens, c_.text_dim}), options_.activations);
    condition_ = silu(embed_condition());
    Value x = conv3x3(root_["conv_in"], cast(latents, options_.activations), c_.channels[0]);
    skips_ = {x};
    for (size_t level = 0; level < c_.levels(); ++level) x = down(level, x);
    x = middle(x);
    for (size_t i = 0; i < c_.levels(); ++i) x = up(i, x);
    HT_ASSERT(skips_.empty());
    x = silu(group_norm(root_["conv_norm_out"], x, c_.norm_eps));
    root_.graph().output("sample",
                         cast(conv3x3(root_["conv_out"], x, c_.in_channels), DType::kF32));
  }

 private:
  Value input(const char* name, const Shape& shape) {
    return root_.graph().input(name, {shape, DType::kF32, {}});
  }
  static Value linear(const Scope& scope, Value x, int64_t out) {
    return nn::linear(scope, x, out, Bias::kYes);
  }
  static Value conv(const Scope& s, Value x, int64_t out, int64_t kernel,
                    const ConvAttributes& how) {
    const Value weight = s.weight("weight", {out, x.dim(1), kernel, kernel});
    return conv2d(x, weight, s.weight("bias", {out}), how);
  }
  static Value conv3x3(const Scope& s, Value x, int64_t out) {
    return conv(s, x, out, 3, {1, {1, 1, 1, 1}});
  }
  Value group_norm(const Scope& s, Value x, float eps) {
    return halftone::group_norm(x, s.weight("weight", {x.dim(1)}), s.weight("bias", {x.dim(1)}),
                                c_.groups, eps);
  }

  // Fp32 in every precision, like all that it feeds: little work, and every ResNet reads it.
  Value embed_condition() {
    const auto perceptron = [&](const Scope& s, Value x) {
      return linear(s["linear_2"], silu(linear(s["linear_1"], x, c_.time_dim())), c_.time_dim());
    };
    const int64_t batch = shape_.batch, numbers = UnetConfig::kSizes;
    const Value time = nn::time_features(input("time", {batch}), c_.time_features(), kMaxPeriod);
    const Value pooled = input("pooled", {batch, c_.pooled_dim});
    const Value sizes = input(kSizesOfCondition, {batch, numbers});
    const Value features =
        reshape(nn::time_features(reshape(sizes, {batch * numbers}), c_.size_features, kMaxPeriod),
                {batch, numbers * c_.size_features});
    return tap("time_embedding", perceptron(root_["time_embedding"], time)) +
           perceptron(root_["add_embedding"], concat({pooled, features}, 1));
  }

  Value resnet(const Scope& s, Value x, int64_t out) {
    // Outside of the region: those of all ResNets read the same, and can be one product.
    const Value moved = cast(linear(s["time_emb_proj"], condition_, out), options_.activations);
    const auto region = root_.graph().region(fmt::format("resnet {}-{}", x.dim(1), out), s.name());
    Value y = conv3x3(s["conv1"], silu(group_norm(s["norm1"], x, c_.norm_eps)), out);
    y = y + reshape(moved, {y.dim(0), out, 1, 1});
    y = conv3x3(s["conv2"], silu(group_norm(s["norm2"], y, c_.norm_eps)), out);
    if (x.dim(1) != out) x = conv(s["conv_shortcut"], x, out, 1, {});
    return tap(s.name(), x + y);
  }

  // To itself, or to the text.
  Value attention(const Scope& s, Value x, Value seen, int64_t heads) {
    const int64_t width = x.dim(2);
    const auto project = [&](const char* name, Value from) {
      return nn::split_heads(nn::linear(s[name], from, width, Bias::kNo), width / heads);
    };
    const Value q = project("to_q", x), k = project("to_k", seen), v = project("to_v", seen);
    return linear(s["to_out"]["0"], nn::attend(q, k, v), width);
  }

  // The second half of one product gates the first.
  Value feed_forward(const Scope& s, Value x) {
    const int64_t width = x.dim(2);
    const auto halves = split(linear(s["net"]["0"]["proj"], x, 8 * width), 2, 2);
    return linear(s["net"]["2"], halves[0] * erf_gelu(halves[1]), width);
  }

  Value transformer_block(const Scope& s, Value x, int64_t heads) {
    const auto region =
        root_.graph().region(fmt::format("transformer block {}", x.dim(2)), s.name());
    const Value normed = nn::layer_norm(s["norm1"], x, kLayerNormEps);
    x = x + attention(s["attn1"], normed, normed, heads);
    x = x + attention(s["attn2"], nn::layer_norm(s["norm2"], x, kLayerNormEps), text_, heads);
    x = x + feed_forward(s["ff"], nn::layer_norm(s["norm3"], x, kLayerNormEps));
    return tap(s.name(), x);
  }

  Value transformer(const Scope& s, Value x, size_t level) {
    const Value normed = group_norm(s["norm"], x, kTransformerGroupEps);
    Value tokens = linear(s["proj_in"], nn::tokens_of(normed), x.dim(1));
    for (int64_t i = 0; i < c_.transformer_layers[level]; ++i) {
      tokens =
          transformer_block(s["transformer_blocks"][std::to_string(i)], tokens, c_.heads[level]);
    }
    tokens = linear(s["proj_out"], tokens, x.dim(1));
    return nn::picture_of(tokens, x.dim(2), x.dim(3)) + x;
  }

  Value down(size_t level, Value x) {
    const Scope s = root_["down_blocks"][std::to_string(level)];
    const int64_t out = c_.channels[level];
    for (int64_t i = 0; i < c_.layers_per_block; ++i) {
      const std::string number = std::to_string(i);
      x = resnet(s["resnets"][number], x, out);
      if (c_.down_attends[level]) x = transformer(s["attentions"][number], x, level);
      if (level == 0 && i == 0) mark(nn::kAfterFirstBlock, x);
      skips_.push_back(x);
    }
    if (level + 1 == c_.levels()) return x;
    x = conv(s["downsamplers"]["0"]["conv"], x, out, 3, {2, {1, 1, 1, 1}});
    skips_.push_back(x);
    return x;
  }

  Value middle(Value x) {
    const Scope s = root_["mid_block"];
    x = resnet(s["resnets"]["0"], x, x.dim(1));
    x = transformer(s["attentions"]["0"], x, c_.levels() - 1);
    return resnet(s["resnets"]["1"], x, x.dim(1));
  }

  // The last that was kept on the way down is the first that is read.
  Value with_skip(Value x) {
    const Value skip = skips_.back();
    skips_.pop_back();
    return concat({x, skip}, 1);
  }

  Value up(size_t index, Value x) {
    const Scope s = root_["up_blocks"][std::to_string(index)];
    const size_t level = c_.levels() - 1 - index;
    const int64_t out = c_.channels[level];
    for (int64_t i = 0; i <= c_.layers_per_block; ++i) {
      const std::string number = std::to_string(i);
      x = resnet(s["resnets"][number], with_skip(x), out);
      if (c_.up_attends[index]) x = transformer(s["attentions"][number], x, level);
      if (level == 0 && i == 0) mark(nn::kAfterLastBlock, x);
    }
    if (level == 0) return x;
    return conv3x3(s["upsamplers"]["0"]["conv"], upsample2x(x), out);
  }

  // Everything of lower resolution is between these two, which are alike; what the first block and
  // those before it kept for the way up is read by what comes after the last one.
  void mark(const char* name, Value x) {
    if (options_.mark_ends) root_.graph().output(name, x);
  }

  Value tap(const std::string& name, Value x) {
    if (options_.tap_blocks) root_.graph().output(name, x);
    return x;
  }

  Scope root_;
  const UnetConfig& c_;
  const UnetShape& shape_;
  const UnetOptions& options_;
  Value text_, condition_;
  std::vector<Value> skips_;
};

}  // namespace

std::shared_ptr<Graph> build_unet(const UnetConfig& config, const UnetShape& shape,
                                  const UnetOptions& options) {
  auto graph = std::make_shared<Graph>();
  UnetBuilder(*graph, config, shape, options).build();
  return graph;
}

}  // namespace halftone::sdxl
