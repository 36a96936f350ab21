#include "halftone/models/flux1/transformer.h"

#include "halftone/nn/block_ends.h"
#include "halftone/nn/pictures.h"
#include "halftone/nn/rope_axes.h"
#include "halftone/nn/two_streams.h"

namespace halftone::flux1 {
namespace {

using nn::Bias;
using nn::Modulation;
using nn::RopeTables;
using nn::Scope;
using nn::Stream;

class FluxBuilder {
 public:
  FluxBuilder(Graph& graph, const TransformerConfig& config, const TransformerShape& shape,
              const TransformerOptions& options)
      : root_(graph, ""), c_(config), shape_(shape), options_(options) {
    style_.head_dim = c_.head_dim;
    style_.feed_forward = nn::gelu_feed_forward;
  }

  void build() {
    Graph& graph = root_.graph();
    const int64_t batch = shape_.batch, text_tokens = shape_.text_tokens;
    const Value latents =
        graph.input("latents", f32({batch, c_.latent_channels(), shape_.height, shape_.width}));
    const Value states = graph.input("text", f32({batch, text_tokens, c_.joint_dim}));
    const ValueType table = f32({batch, shape_.tokens(), c_.head_dim / 2});
    const RopeTables rope = {graph.input("rope.cosine", table), graph.input("rope.sine", table)};

    const Value condition = silu(embed_condition());
    Stream image{
        nn::kPictureNames, embed_image(latents), rope.slice(text_tokens, shape_.tokens()), {}};
    Stream text{nn::kTextNames, embed_text(states), rope.slice(0, text_tokens), {}};
    for (int64_t i = 0; i < c_.layers; ++i) {
      const Scope scope = root_["transformer_blocks"][std::to_string(i)];
      const auto region = graph.region("transformer_blocks", scope.name());
      image.modulation = modulation(scope["norm1"], condition, 2);
      text.modulation = modulation(scope["norm1_context"], condition, 2);
      nn::two_stream_block(scope, text, image, style_);
      tap(scope.name() + ".text", text.x);
      tap(scope.name(), image.x);
      if (i == 0) mark(nn::kAfterFirstBlock, image.x);
    }
    Value x = concat({text.x, image.x}, 1);
    for (int64_t i = 0; i < c_.single_layers; ++i) {
      const Scope scope = root_["single_transformer_blocks"][std::to_string(i)];
      const auto region = graph.region("single_transformer_blocks", scope.name());
      x = tap(scope.name(), single_block(scope, x, rope, condition));
    }
    graph.output("sample", final_layer(x, condition));
  }

 private:
  static ValueType f32(const Shape& shape) { return {shape, DType::kF32, {}}; }
  static Value linear(const Scope& scope, Value x, int64_t out) {
    return nn::linear(scope, x, out, Bias::kYes);
  }

  Value perceptron(const Scope& s, Value x) {
    return linear(s["linear_2"], silu(linear(s["linear_1"], x, c_.dim())), c_.dim());
  }
  Value number_features(const char* input) {
    const Value number = root_.graph().input(input, f32({shape_.batch}));
    return nn::time_features(1000.0f * number, TransformerConfig::kTimeFeatures, 10000);
  }

  // Fp32 in every precision, like all that it feeds: modulation and the final norm.
  Value embed_condition() {
    const Scope s = root_["time_text_embed"];
    Value sum = perceptron(s["timestep_embedder"], number_features("time"));
    if (c_.guidance) {
      sum = sum + perceptron(s["guidance_embedder"], number_features("told.guidance"));
    }
    const Value pooled = root_.graph().input("pooled", f32({shape_.batch, c_.pooled_dim}));
    return tap("time_text_embed", sum + perceptron(s["text_embedder"], pooled));
  }

  Value embed_image(Value latents) {
    const Value x = nn::tokens_of(nn::patchify(latents, TransformerConfig::kPatch));
    return cast(linear(root_["x_embedder"], x, c_.dim()), options_.activations);
  }

  // A large product, and states that come from an encoder in the same precision.
  Value embed_text(Value states) {
    return linear(root_["context_embedder"], cast(states, options_.activations), c_.dim());
  }

  std::vector<Modulation> modulation(const Scope& norm, Value condition, int sets) {
    return nn::split_modulation(linear(norm["linear"], condition, 3 * sets * c_.dim()), sets);
  }

  // Attention and MLP side by side: one product after both.
  Value single_block(const Scope& s, Value x, const RopeTables& rope, Value condition) {
    const Modulation by = modulation(s["norm"], condition, 1)[0];
    const Value normed = nn::modulate(layer_norm(x, style_.eps), by);
    const auto [q, k, v] = nn::project(s["attn"], nn::kPictureNames, normed, rope, style_);
    const Value hidden = gelu(linear(s["proj_mlp"], normed, c_.hidden()));
    const Value both = concat({nn::attend(q, k, v), hidden}, 2);
    return nn::add_gated(x, linear(s["proj_out"], both, c_.dim()), by);
  }

  Value final_layer(Value x, Value condition) {
    const auto parts =
        nn::split_per_item(linear(root_["norm_out"]["linear"], condition, 2 * c_.dim()), 2);
    const Value scale = 1.0f + parts[0], shift = parts[1];
    x = slice(x, 1, shape_.text_tokens, shape_.tokens());
    mark(nn::kAfterLastBlock, x);
    x = layer_norm(cast(x, DType::kF32), style_.eps) * scale + shift;
    x = linear(root_["proj_out"], x, c_.in_channels);
    const Value patches = nn::picture_of(x, shape_.rows(), shape_.columns());
    return nn::unpatchify(patches, TransformerConfig::kPatch);
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
  FluxBuilder(*graph, config, shape, options).build();
  return graph;
}

std::map<std::string, Tensor> position_inputs(const TransformerConfig& config,
                                              const TransformerShape& shape) {
  std::vector<int64_t> positions(static_cast<size_t>(3 * shape.text_tokens), 0);
  for (int64_t h = 0; h < shape.rows(); ++h) {
    for (int64_t w = 0; w < shape.columns(); ++w) positions.insert(positions.end(), {0, h, w});
  }
  constexpr double kTheta = 10000;
  const nn::RopeAxes angles(kTheta, config.axes_dims, nn::AnglePrecision::kFloat64);
  return nn::rope_tables(angles, positions, shape.batch);
}

}  // namespace halftone::flux1
