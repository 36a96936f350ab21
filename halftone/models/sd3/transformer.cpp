#include "halftone/models/sd3/transformer.h"

#include "halftone/nn/block_ends.h"
#include "halftone/nn/pictures.h"
#include "halftone/nn/two_streams.h"

namespace halftone::sd3 {
namespace {

using nn::Bias;
using nn::Heads;
using nn::Modulation;
using nn::Scope;
using nn::Stream;

class Sd3Builder {
 public:
  Sd3Builder(Graph& graph, const TransformerConfig& config, const TransformerShape& shape,
             const TransformerOptions& options)
      : root_(graph, ""), c_(config), shape_(shape), options_(options) {
    style_.head_dim = c_.head_dim;
    style_.norm_heads = c_.norm_heads;
    style_.feed_forward = nn::gelu_feed_forward;
  }

  void build() {
    Graph& graph = root_.graph();
    const int64_t batch = shape_.batch;
    const Value latents =
        graph.input("latents", f32({batch, c_.in_channels, shape_.height, shape_.width}));
    const Value states = graph.input("text", f32({batch, shape_.text_tokens, c_.joint_dim}));
    const Value condition = silu(embed_condition());
    Stream image{nn::kPictureNames, embed_image(latents), {}, {}};
    Stream text{nn::kTextNames, embed_text(states), {}, {}};
    for (int64_t i = 0; i < c_.layers; ++i) {
      const Scope scope = root_["transformer_blocks"][std::to_string(i)];
      const auto region = graph.region("transformer_blocks", scope.name());
      const bool last = i + 1 == c_.layers;
      block(scope, text, image, condition, {c_.dual_layers.contains(i), last});
      if (!last) tap(scope.name() + ".text", text.x);
      tap(scope.name(), image.x);
      if (i == 0) mark(nn::kAfterFirstBlock, image.x);
    }
    mark(nn::kAfterLastBlock, image.x);
    graph.output("sample", final_layer(image.x, condition));
  }

 private:
  struct BlockKind {
    bool dual, last;  // the image attends to itself besides; nothing reads the text after it
  };

  static ValueType f32(const Shape& shape) { return {shape, DType::kF32, {}}; }
  static Value linear(const Scope& scope, Value x, int64_t out) {
    return nn::linear(scope, x, out, Bias::kYes);
  }

  // Fp32 in every precision, like all that it feeds: modulation and the final norm.
  Value embed_condition() {
    Graph& graph = root_.graph();
    const Scope s = root_["time_text_embed"];
    const auto perceptron = [&](const Scope& scope, Value x) {
      return linear(scope["linear_2"], silu(linear(scope["linear_1"], x, c_.dim())), c_.dim());
    };
    const Value time = graph.input("time", f32({shape_.batch}));
    const Value features = nn::time_features(time, TransformerConfig::kTimeFeatures, 10000);
    const Value pooled = graph.input("pooled", f32({shape_.batch, c_.pooled_dim}));
    return tap("time_text_embed", perceptron(s["timestep_embedder"], features) +
                                      perceptron(s["text_embedder"], pooled));
  }

  // Patches by a convolution, and the middle of the table of positions, which is square.
  Value embed_image(Value latents) {
    const Scope s = root_["pos_embed"];
    const int64_t patch = TransformerConfig::kPatch, most = c_.most_positions;
    const Value weight = s["proj"].weight("weight", {c_.dim(), c_.in_channels, patch, patch});
    const Value bias = s["proj"].weight("bias", {c_.dim()});
    ConvAttributes by_patch;
    by_patch.stride = static_cast<int>(patch);
    const Value x = nn::tokens_of(conv2d(latents, weight, bias, by_patch));
    const Value table =
        reshape(s.weight("pos_embed", {1, most * most, c_.dim()}), {most, most, c_.dim()});
    const auto middle = [&](Value v, int axis, int64_t size) {
      const int64_t first = (most - size) / 2;
      return slice(v, axis, first, first + size);
    };
    const Value positions = middle(middle(table, 0, shape_.rows()), 1, shape_.columns());
    const Value by_token =
        cast(reshape(positions, {1, shape_.rows() * shape_.columns(), c_.dim()}), DType::kF32);
    return cast(x + by_token, options_.activations);
  }

  // A large product, and states that come from an encoder in the same precision.
  Value embed_text(Value states) {
    return linear(root_["context_embedder"], cast(states, options_.activations), c_.dim());
  }

  // Scale and shift, without a gate, in this order.
  Value scaled_norm(const Scope& norm, Value x, Value condition) {
    const auto parts = nn::split_per_item(linear(norm["linear"], condition, 2 * c_.dim()), 2);
    return layer_norm(x, style_.eps) * (1.0f + parts[0]) + parts[1];
  }

  void block(const Scope& s, Stream& text, Stream& image, Value condition, const BlockKind& kind) {
    const auto modulation = [&](const char* norm, int sets) {
      return nn::split_modulation(linear(s[norm]["linear"], condition, 3 * sets * c_.dim()), sets);
    };
    image.modulation = modulation("norm1", kind.dual ? 3 : 2);
    const Value normed = layer_norm(image.x, style_.eps);
    const Heads of_image =
        nn::project(s["attn"], image.names, nn::modulate(normed, image.modulation[0]), {}, style_);
    Value text_input = text.x;
    if (kind.last) {
      text_input = scaled_norm(s["norm1_context"], text.x, condition);
    } else {
      text.modulation = modulation("norm1_context", 2);
      text_input = nn::attention_input(text, style_);
    }
    const Heads of_text = nn::project(s["attn"], text.names, text_input, {}, style_);
    const auto [to_image, to_text] = nn::attend_to_both(of_image, of_text);
    nn::add_attention(s, image, to_image, style_);
    if (kind.dual) {
      const Modulation& by = image.modulation[2];
      const Scope attn = s["attn2"];
      const auto [q, k, v] = nn::project(attn, image.names, nn::modulate(normed, by), {}, style_);
      const Value out = linear(attn[image.names.out], nn::attend(q, k, v), c_.dim());
      image.x = nn::add_gated(image.x, out, by);
    }
    nn::add_feed_forward(s, image, style_);
    if (kind.last) return;
    nn::add_attention(s, text, to_text, style_);
    nn::add_feed_forward(s, text, style_);
  }

  Value final_layer(Value x, Value condition) {
    const int64_t patch = TransformerConfig::kPatch;
    x = scaled_norm(root_["norm_out"], cast(x, DType::kF32), condition);
    x = linear(root_["proj_out"], x, patch * patch * c_.in_channels);
    // Of a patch's values the channel is the last here, and the first where patches are read.
    x = reshape(x, {shape_.batch, shape_.rows(), shape_.columns(), patch, patch, c_.in_channels});
    return reshape(permute(x, {0, 5, 1, 3, 2, 4}),
                   {shape_.batch, c_.in_channels, shape_.height, shape_.width});
  }

  void mark(const char* end, Value x) {
    if (options_.mark_ends) root_.graph().output(end, x);
  }
  Value tap(const std::string& name, Value x) {
    if (options_.tap_blocks) root_.graph().output(name, x);
    return x;
  }

  Scope root_;
  const TransformerConfig& c_;
  const TransformerShape& shape_;
  const TransformerOptions& options_;
  nn::StreamStyle style_;
};

}  // namespace

std::shared_ptr<Graph> build_transformer(const TransformerConfig& config,
                                         const TransformerShape& shape,
                                         const TransformerOptions& options) {
  auto graph = std::make_shared<Graph>();
  Sd3Builder(*graph, config, shape, options).build();
  return graph;
}

}  // namespace halftone::sd3
