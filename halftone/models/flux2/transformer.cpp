#include "halftone/models/flux2/transformer.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/nn/attention.h"
#include "halftone/nn/modulation.h"
#include "halftone/nn/pictures.h"
#include "halftone/nn/rope_axes.h"

namespace halftone::flux2 {
namespace {

using nn::Bias;
using nn::Modulation;
using nn::RopeTables;
using nn::Scope;

// A query, a key and a value for every token: [B, T, H, D].
struct Projected {
  Value q, k, v;
};

// What the two streams of a block call the same parts.
struct StreamNames {
  const char *q, *k, *v, *norm_q, *norm_k, *feed_forward;
};
constexpr StreamNames kTextNames = {"add_q_proj",   "add_k_proj",   "add_v_proj",
                                    "norm_added_q", "norm_added_k", "ff_context"};
constexpr StreamNames kImageNames = {"to_q", "to_k", "to_v", "norm_q", "norm_k", "ff"};

class Builder {
 public:
  Builder(Graph& graph, const TransformerConfig& config, const TransformerShape& shape,
          const TransformerOptions& options)
      : root_(graph, ""), c_(config), shape_(shape), options_(options) {}

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
    Stream image{kImageNames, embed_image(latents), rope.slice(text_tokens, shape_.tokens()),
                 modulation("double_stream_modulation_img", 2)};
    Stream text{kTextNames, embed_text(states), rope.slice(0, text_tokens),
                modulation("double_stream_modulation_txt", 2)};
    for (int64_t i = 0; i < c_.layers; ++i) {
      const Scope scope = root_["transformer_blocks"][std::to_string(i)];
      const auto region = graph.region("transformer_blocks", scope.name());
      double_block(scope, text, image);
      tap(scope.name() + ".text", text.x);
      tap(scope.name(), image.x);
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
  struct Stream {
    const StreamNames& names;
    Value x;  // [B, T, C]
    RopeTables rope;
    std::vector<Modulation> modulation;  // of attention and of the MLP
  };

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

  Projected project(const Scope& attn, const Stream& stream) {
    const StreamNames& n = stream.names;
    const Value x = nn::modulate(norm(stream.x), stream.modulation[0]);
    const auto projected = [&](const char* name) { return linear(attn[name], x, c_.dim()); };
    return {rotate(attn[n.norm_q], projected(n.q), stream.rope),
            rotate(attn[n.norm_k], projected(n.k), stream.rope),
            nn::split_heads(projected(n.v), c_.head_dim)};
  }

  void double_block(const Scope& s, Stream& text, Stream& image) {
    const Scope attn = s["attn"];
    const Projected a = project(attn, text), b = project(attn, image);
    const Value q = concat({a.q, b.q}, 1), k = concat({a.k, b.k}, 1), v = concat({a.v, b.v}, 1);
    const Value y = nn::attend(q, k, v);
    const int64_t border = text.x.dim(1);
    finish(s, text, linear(attn["to_add_out"], slice(y, 1, 0, border), c_.dim()));
    finish(s, image, linear(attn["to_out"]["0"], slice(y, 1, border, y.dim(1)), c_.dim()));
  }

  void finish(const Scope& s, Stream& stream, Value attended) {
    stream.x = nn::add_gated(stream.x, attended, stream.modulation[0]);
    const Scope ff = s[stream.names.feed_forward];
    const Value x = nn::modulate(norm(stream.x), stream.modulation[1]);
    const Value hidden = nn::silu_gate(linear(ff["linear_in"], x, 2 * c_.hidden()));
    stream.x =
        nn::add_gated(stream.x, linear(ff["linear_out"], hidden, c_.dim()), stream.modulation[1]);
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

  Value final_layer(Value x, Value condition) {
    const auto parts =
        nn::split_per_item(linear(root_["norm_out"]["linear"], condition, 2 * c_.dim()), 2);
    const Value scale = 1.0f + parts[0], shift = parts[1];
    const int64_t first = shape_.text_tokens;
    x = cast(slice(x, 1, first, first + shape_.image_tokens()), DType::kF32);
    x = linear(root_["proj_out"], norm(x) * scale + shift, c_.in_channels);
    return nn::picture_of(x, shape_.height, shape_.width);
  }

  Value tap(const std::string& name, Value x) {
    if (options_.tap_blocks) root_.graph().output(name, x);
    return x;
  }

  Scope root_;
  const TransformerConfig& c_;
  const TransformerShape& shape_;
  const TransformerOptions& options_;
};

// Positions (t, h, w, l) of all tokens in order.
template <class Visit>
void visit_positions(int64_t text_tokens, const Tensor& latents, std::span<const Tensor> references,
                     const Visit& visit) {
  for (int64_t l = 0; l < text_tokens; ++l) visit({0, 0, 0, l});
  const auto visit_picture = [&](const Shape& shape, int64_t t) {
    for (int64_t h = 0; h < shape[2]; ++h) {
      for (int64_t w = 0; w < shape[3]; ++w) visit({t, h, w, 0});
    }
  };
  visit_picture(latents.shape(), 0);
  constexpr int64_t kBetweenPictures = 10;
  for (size_t i = 0; i < references.size(); ++i) {
    visit_picture(references[i].shape(), kBetweenPictures * static_cast<int64_t>(i + 1));
  }
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
  const Shape table{shape.batch, shape.tokens(), angles.size()};
  Tensor cosine = Tensor::empty(DType::kF32, table), sine = Tensor::empty(DType::kF32, table);
  float *c = cosine.mutable_as<float>().data(), *s = sine.mutable_as<float>().data();
  visit_positions(shape.text_tokens, latents, references, [&](std::array<int64_t, 4> position) {
    angles.write(position, c, s);
    c += angles.size();
    s += angles.size();
  });
  // Every row has the same positions.
  for (const auto values : {cosine.mutable_as<float>(), sine.mutable_as<float>()}) {
    const int64_t row = shape.tokens() * angles.size();
    for (int64_t b = 1; b < shape.batch; ++b) {
      std::copy_n(values.begin(), row, values.begin() + b * row);
    }
  }
  std::map<std::string, Tensor> inputs = {{"latents", latents},
                                          {"time", time},
                                          {"text", text},
                                          {"rope.cosine", cosine},
                                          {"rope.sine", sine}};
  if (shape.reference_tokens > 0) {
    inputs["references"] =
        tokens_of(references, shape.batch, shape.reference_tokens, config.in_channels);
  }
  return inputs;
}

}  // namespace halftone::flux2
