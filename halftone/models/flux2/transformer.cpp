#include "halftone/models/flux2/transformer.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/nn/block_ends.h"
#include "halftone/nn/pictures.h"
#include "halftone/nn/rope_axes.h"
#include "halftone/nn/two_streams.h"

namespace halftone::flux2 {
namespace {

using nn::Bias;
using nn::Modulation;
using nn::RopeTables;
using nn::Scope;
using nn::Stream;

class Builder {
 public:
  Builder(Graph& graph, const TransformerConfig& config, const TransformerShape& shape,
          const TransformerOptions& options)
      : root_(graph, ""), c_(config), shape_(shape), options_(options) {
    style_.head_dim = c_.head_dim;
    style_.eps = c_.eps;
    style_.bias = Bias::kNo;
    style_.feed_forward = [hidden = c_.hidden()](const Scope& ff, Value x) {
      const Value inner = nn::silu_gate(linear(ff["linear_in"], x, 2 * hidden));
      return linear(ff["linear_out"], inner, x.dim(2));
    };
  }

  void build() {
    Graph& graph = root_.graph();
    const int64_t batch = shape_.batch, text_tokens = shape_.text_tokens;
    const Value latents =
        graph.input("latents", f32({batch, c_.in_channels, shape_.height, shape_.width}));
    const Value time = graph.input("time", f32({batch}));
    const Value states = graph.input("text", f32({batch, text_tokens, c_.joint_dim}));
    const ValueType table = f32({batch, shape_.tokens(), c_.head_dim / 2});
    const RopeTables rope = {graph.input("rope.cosine", table), graph.input("rope.sine", table)};

    // What modulates is the same for all blocks of a kind.
    const Value condition = silu(embed_time(time));
    const auto modulation = [&](const char* name, int sets) {
      const Value all = linear(root_[name]["linear"], condition, 3 * sets * c_.dim());
      return nn::split_modulation(all, sets);
    };
    Stream image{nn::kPictureNames, embed_image(latents), rope.slice(text_tokens, shape_.tokens()),
                 modulation("double_stream_modulation_img", 2)};
    Stream text{nn::kTextNames, embed_text(states), rope.slice(0, text_tokens),
                modulation("double_stream_modulation_txt", 2)};
    for (int64_t i = 0; i < c_.layers; ++i) {
      const Scope scope = root_["transformer_blocks"][std::to_string(i)];
      const auto region = graph.region("transformer_blocks", scope.name());
      nn::two_stream_block(scope, text, image, style_);
      tap(scope.name() + ".text", text.x);
      tap(scope.name(), image.x);
      if (i == 0) mark(nn::kAfterFirstBlock, without_references(image.x));
    }
    const Modulation single = modulation("single_stream_modulation", 1)[0];
    Value x = concat({text.x, image.x}, 1);
    for (int64_t i = 0; i < c_.single_layers; ++i) {
      const Scope scope = root_["single_transformer_blocks"][std::to_string(i)];
      const auto region = graph.region("single_transformer_blocks", scope.name());
      x = tap(scope.name(), single_block(scope, x, rope, single));
    }
    graph.output("sample", final_layer(x, condition));
  }

 private:
  static ValueType f32(const Shape& shape) { return {shape, DType::kF32, {}}; }
  static Value linear(const Scope& scope, Value x, int64_t out) {
    return nn::linear(scope, x, out, Bias::kNo);
  }

  // Fp32 in every precision, like all that it feeds: modulation and the final norm.
  Value embed_time(Value time) {
    const Scope s = root_["time_guidance_embed"]["timestep_embedder"];
    const Value features = nn::time_features(1000.0f * time, c_.time_channels, 10000);
    const Value hidden = silu(linear(s["linear_1"], features, c_.dim()));
    return tap("time_guidance_embed", linear(s["linear_2"], hidden, c_.dim()));
  }

  Value embed_image(Value latents) {
    Value x = nn::tokens_of(latents);
    if (shape_.reference_tokens > 0) {
      const Shape shape{shape_.batch, shape_.reference_tokens, c_.in_channels};
      x = concat({x, root_.graph().input("references", f32(shape))}, 1);
    }
    return cast(linear(root_["x_embedder"], x, c_.dim()), options_.activations);
  }

  // A large product, and states that come from an encoder in the same precision.
  Value embed_text(Value states) {
    return linear(root_["context_embedder"], cast(states, options_.activations), c_.dim());
  }

  Value norm(Value x) { return layer_norm(x, c_.eps); }

  Value rotate(const Scope& norm, Value x, const RopeTables& rope) {
    return nn::norm_and_rotate(norm, nn::split_heads(x, c_.head_dim), c_.eps, rope,
                               RopeLayout::kInterleaved);
  }

  // Attention and MLP side by side: one product before both, one after.
  Value single_block(const Scope& s, Value x, const RopeTables& rope, const Modulation& by) {
    const Scope attn = s["attn"];
    const int64_t d = c_.dim(), width = 3 * d + 2 * c_.hidden();
    const Value all = linear(attn["to_qkv_mlp_proj"], nn::modulate(norm(x), by), width);
    const auto columns = [&](int64_t begin, int64_t end) { return slice(all, 2, begin, end); };
    const Value q = rotate(attn["norm_q"], columns(0, d), rope);
    const Value k = rotate(attn["norm_k"], columns(d, 2 * d), rope);
    const Value v = nn::split_heads(columns(2 * d, 3 * d), c_.head_dim);
    const Value gate = columns(3 * d, 3 * d + c_.hidden());
    const Value up = columns(3 * d + c_.hidden(), width);
    const Value attended = nn::attend(q, k, v);
    const Value both = concat({attended, silu_mul(gate, up)}, 2);
    return nn::add_gated(x, linear(attn["to_out"], both, d), by);
  }

  // Tokens of the picture that is made, of all that are no text.
  Value without_references(Value x) const { return slice(x, 1, 0, shape_.image_tokens()); }

  Value final_layer(Value x, Value condition) {
    const auto parts =
        nn::split_per_item(linear(root_["norm_out"]["linear"], condition, 2 * c_.dim()), 2);
    const Value scale = 1.0f + parts[0], shift = parts[1];
    x = without_references(slice(x, 1, shape_.text_tokens, shape_.tokens()));
    mark(nn::kAfterLastBlock, x);
    x = norm(cast(x, DType::kF32)) * scale + shift;
    x = linear(root_["proj_out"], x, c_.in_channels);
    return nn::picture_of(x, shape_.height, shape_.width);
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

// Positions (t, h, w, l) of all tokens in order.
std::vector<int64_t> positions_of(int64_t text_tokens, const Tensor& latents,
                                  std::span<const Tensor> references) {
  std::vector<int64_t> positions;
  const auto add = [&](std::initializer_list<int64_t> one) {
    positions.insert(positions.end(), one);
  };
  for (int64_t l = 0; l < text_tokens; ++l) add({0, 0, 0, l});
  const auto add_picture = [&](const Shape& shape, int64_t t) {
    for (int64_t h = 0; h < shape[2]; ++h) {
      for (int64_t w = 0; w < shape[3]; ++w) add({t, h, w, 0});
    }
  };
  add_picture(latents.shape(), 0);
  constexpr int64_t kBetweenPictures = 10;
  for (size_t i = 0; i < references.size(); ++i) {
    add_picture(references[i].shape(), kBetweenPictures * static_cast<int64_t>(i + 1));
  }
  return positions;
}

// Latents [B, C, h, w] of each as tokens [B, sum of h * w, C].
Tensor tokens_of(std::span<const Tensor> pictures, int64_t batch, int64_t tokens,
                 int64_t channels) {
  Tensor result = Tensor::empty(DType::kF32, {batch, tokens, channels});
  auto out = result.mutable_as<float>();
  int64_t first = 0;
  for (const Tensor& picture : pictures) {
    const int64_t size = picture.shape()[2] * picture.shape()[3];
    const auto from = picture.as<float>();
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t i = 0; i < size; ++i) {
          out[(b * tokens + first + i) * channels + c] = from[(b * channels + c) * size + i];
        }
      }
    }
    first += size;
  }
  return result;
}

}  // namespace

TransformerShape shape_for(const Tensor& latents, std::span<const Tensor> texts,
                           std::span<const Tensor> references) {
  TransformerShape shape{latents.shape()[0], latents.shape()[2], latents.shape()[3],
                         texts[0].shape()[0]};
  for (const Tensor& reference : references) {
    shape.reference_tokens += reference.shape()[2] * reference.shape()[3];
  }
  return shape;
}

std::shared_ptr<Graph> build_transformer(const TransformerConfig& config,
                                         const TransformerShape& shape,
                                         const TransformerOptions& options) {
  auto graph = std::make_shared<Graph>();
  Builder(*graph, config, shape, options).build();
  return graph;
}

std::map<std::string, Tensor> transformer_inputs(const TransformerConfig& config,
                                                 const Tensor& latents,
                                                 std::span<const float> sigmas,
                                                 std::span<const Tensor> texts,
                                                 std::span<const Tensor> references) {
  const TransformerShape shape = shape_for(latents, texts, references);
  HT_ASSERT(static_cast<int64_t>(sigmas.size()) == shape.batch &&
            static_cast<int64_t>(texts.size()) == shape.batch);
  Tensor time = Tensor::empty(DType::kF32, {shape.batch});
  std::copy(sigmas.begin(), sigmas.end(), time.mutable_as<float>().begin());
  Tensor text = Tensor::empty(DType::kF32, {shape.batch, shape.text_tokens, config.joint_dim});
  auto states = text.mutable_as<float>().begin();
  for (const Tensor& row : texts) {
    HT_ASSERT(row.shape() == (Shape{shape.text_tokens, config.joint_dim}));
    states = std::copy(row.as<float>().begin(), row.as<float>().end(), states);
  }

  const nn::RopeAxes angles(config.rope_theta, config.axes_dims, nn::AnglePrecision::kFloat64);
  auto inputs =
      nn::rope_tables(angles, positions_of(shape.text_tokens, latents, references), shape.batch);
  inputs["latents"] = latents;
  inputs["time"] = time;
  inputs["text"] = text;
  if (shape.reference_tokens > 0) {
    inputs["references"] =
        tokens_of(references, shape.batch, shape.reference_tokens, config.in_channels);
  }
  return inputs;
}

}  // namespace halftone::flux2
