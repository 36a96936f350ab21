#include "halftone/models/zimage/transformer.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/nn/attention.h"
#include "halftone/nn/block_ends.h"
#include "halftone/nn/modulation.h"
#include "halftone/nn/rope_axes.h"

namespace halftone::zimage {
namespace {

using nn::Bias;
using nn::RopeTables;
using nn::Scope;

// The blocks that picture and caption go through together.
constexpr const char* kMainBlocks = "layers";

// What all blocks of a sequence share.
struct Sequence {
  RopeTables rope;
  std::optional<Value> lengths;  // of each row, where they differ
};

class Builder {
 public:
  Builder(Graph& graph, const TransformerConfig& config, const TransformerShape& shape,
          const TransformerOptions& options)
      : root_(graph, ""), c_(config), shape_(shape), options_(options) {
    rows_ = shape.height / c_.patch_size;
    columns_ = shape.width / c_.patch_size;
    image_tokens_ = padded_length(rows_ * columns_);
  }

  void build() {
    Graph& graph = root_.graph();
    const int64_t tokens = image_tokens_ + shape_.caption_tokens;
    const int64_t batch = shape_.batch;
    const Value latents =
        graph.input("latents", f32({batch, c_.in_channels, shape_.height, shape_.width}));
    const Value time = graph.input("time", f32({batch}));
    const Value captions =
        graph.input("captions", f32({batch, shape_.caption_tokens, c_.cap_feat_dim}));
    const Value caption_lengths = graph.input("caption_lengths", i32({batch}));
    const Value caption_extent = graph.input("caption_extent", i32({batch}));
    const Value lengths = graph.input("lengths", i32({batch}));
    const RopeTables rope = {graph.input("rope.cosine", f32({batch, tokens, c_.head_dim() / 2})),
                             graph.input("rope.sine", f32({batch, tokens, c_.head_dim() / 2}))};

    const Value condition = embed_time(time);
    Value x = embed_image(latents);
    const Sequence image{rope.slice(0, image_tokens_), {}};
    x = blocks("noise_refiner", c_.refiner_layers, x, image, condition);

    Value caption = embed_caption(captions, caption_lengths);
    const auto if_ragged = [&](Value value) {
      return shape_.ragged ? std::optional(value) : std::nullopt;
    };
    const Sequence text{rope.slice(image_tokens_, tokens), if_ragged(caption_extent)};
    caption = blocks("context_refiner", c_.refiner_layers, caption, text, std::nullopt);

    x = blocks(kMainBlocks, c_.layers, concat({x, caption}, 1), {rope, if_ragged(lengths)},
               condition);
    const Value sample = final_layer(x, condition);
    graph.output("sample", options_.velocity ? -sample : sample);
  }

  void build_blocks(int64_t layers, int64_t tokens) {
    Graph& graph = root_.graph();
    const int64_t batch = shape_.batch;
    const Value x = graph.input("x", {{batch, tokens, c_.dim}, options_.activations, {}});
    const Value condition = graph.input("condition", f32({batch, c_.modulation_dim()}));
    const ValueType table = f32({batch, tokens, c_.head_dim() / 2});
    const RopeTables rope = {graph.input("rope.cosine", table), graph.input("rope.sine", table)};
    graph.output("y", blocks(kMainBlocks, layers, x, {rope, {}}, condition));
  }

 private:
  static ValueType f32(const Shape& shape) { return {shape, DType::kF32, {}}; }
  static ValueType i32(const Shape& shape) { return {shape, DType::kI32, {}}; }

  Value constant_lengths(const std::string& name, int64_t length) {
    Tensor tensor = Tensor::empty(DType::kI32, {shape_.batch});
    for (int32_t& n : tensor.mutable_as<int32_t>()) n = static_cast<int32_t>(length);
    return root_.graph().constant(name + " lengths", tensor);
  }

  // Fp32 in every precision, like all that it feeds: modulation and the final scale.
  Value embed_time(Value time) {
    const Scope mlp = root_["t_embedder"]["mlp"];
    const Value features = nn::time_features(c_.t_scale * time, 256, 10000);
    const Value hidden = silu(nn::linear(mlp["0"], features, 1024, Bias::kYes));
    return tap("t_embedder", nn::linear(mlp["2"], hidden, c_.modulation_dim(), Bias::kYes));
  }

  Value embed_image(Value latents) {
    const int64_t p = c_.patch_size, batch = shape_.batch;
    // A patch is (row, column, channel), the channel last.
    Value x = reshape(latents, {batch, c_.in_channels, rows_, p, columns_, p});
    x = reshape(permute(x, {0, 2, 4, 3, 5, 1}), {batch, rows_ * columns_, p * p * c_.in_channels});
    x = nn::linear(root_["all_x_embedder"][patch_key()], x, c_.dim, Bias::kYes);
    const int64_t tokens = rows_ * columns_;
    if (tokens < image_tokens_) {
      x = pad_rows(pad(x, 1, 0, image_tokens_ - tokens), pad_token("x_pad_token"),
                   constant_lengths("patch", tokens));
    }
    return cast(x, options_.activations);
  }

  Value embed_caption(Value captions, Value caption_lengths) {
    const Scope scope = root_["cap_embedder"];
    Value x = nn::rms_norm(scope["0"], captions, c_.norm_eps);
    x = nn::linear(scope["1"], x, c_.dim, Bias::kYes);
    return cast(pad_rows(x, pad_token("cap_pad_token"), caption_lengths), options_.activations);
  }

  Value blocks(const std::string& kind, int64_t count, Value x, const Sequence& sequence,
               std::optional<Value> condition) {
    for (int64_t i = 0; i < count; ++i) {
      const Scope scope = root_[kind][std::to_string(i)];
      const auto region = root_.graph().region(kind, scope.name());
      x = tap(scope.name(), block(scope, x, sequence, condition));
      if (i == 0 && kind == kMainBlocks) mark(nn::kAfterFirstBlock, of_image(x));
    }
    return x;
  }

  Value block(const Scope& s, Value x, const Sequence& sequence, std::optional<Value> condition) {
    if (!condition) {
      x = x + norm(s["attention_norm2"],
                   attention(s["attention"], norm(s["attention_norm1"], x), sequence));
      return x + norm(s["ffn_norm2"],
                      nn::swiglu(s["feed_forward"], norm(s["ffn_norm1"], x), c_.hidden()));
    }
    const Value modulation =
        nn::linear(s["adaLN_modulation"]["0"], *condition, 4 * c_.dim, Bias::kYes);
    const auto parts = nn::split_per_item(modulation, 4);
    const Value scale_a = 1.0f + parts[0], gate_a = tanh(parts[1]);
    const Value scale_f = 1.0f + parts[2], gate_f = tanh(parts[3]);
    const Value a = attention(s["attention"], norm(s["attention_norm1"], x) * scale_a, sequence);
    x = x + norm(s["attention_norm2"], a) * gate_a;
    const Value f = nn::swiglu(s["feed_forward"], norm(s["ffn_norm1"], x) * scale_f, c_.hidden());
    return x + norm(s["ffn_norm2"], f) * gate_f;
  }

  Value attention(const Scope& s, Value x, const Sequence& sequence) {
    const auto project = [&](const char* name) {
      return nn::split_heads(nn::linear(s[name], x, c_.dim, Bias::kNo), c_.head_dim());
    };
    const auto rotated = [&](const char* norm, const char* name) {
      constexpr float kEps = 1e-5f;
      return nn::norm_and_rotate(s[norm], project(name), kEps, sequence.rope,
                                 RopeLayout::kInterleaved);
    };
    const Value q = rotated("norm_q", "to_q"), k = rotated("norm_k", "to_k");
    const Value y = nn::attend(q, k, project("to_v"), {sequence.lengths});
    return nn::linear(s["to_out"]["0"], y, c_.dim, Bias::kNo);
  }

  Value final_layer(Value x, Value condition) {
    const Scope s = root_["all_final_layer"][patch_key()];
    const int64_t p = c_.patch_size, batch = shape_.batch;
    const Value scale =
        1.0f + nn::linear(s["adaLN_modulation"]["1"], silu(condition), c_.dim, Bias::kYes);
    x = of_image(x);
    mark(nn::kAfterLastBlock, x);
    x = layer_norm(cast(x, DType::kF32), 1e-6f) * reshape(scale, {batch, 1, c_.dim});
    x = nn::linear(s["linear"], x, p * p * c_.in_channels, Bias::kYes);
    x = permute(reshape(x, {batch, rows_, columns_, p, p, c_.in_channels}), {0, 5, 1, 3, 2, 4});
    return reshape(x, {batch, c_.in_channels, shape_.height, shape_.width});
  }

  Value of_image(Value x) const { return slice(x, 1, 0, rows_ * columns_); }  // without padding
  Value norm(const Scope& scope, Value x) { return nn::rms_norm(scope, x, c_.norm_eps); }
  Value pad_token(const char* name) { return reshape(root_.weight(name, {1, c_.dim}), {c_.dim}); }
  std::string patch_key() const { return std::to_string(c_.patch_size) + "-1"; }

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
  int64_t rows_, columns_, image_tokens_;
};

void check_patches(const TransformerConfig& c, std::array<int64_t, 2> patches) {
  constexpr const char* kWhat[] = {"rows", "columns"};
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t most = c.axes_lens[axis + 1];
    if (patches[axis] <= most) continue;
    throw Error(ErrorCode::kInvalidInput, "size",
                "'axes_lens' has positions for {} {} of patches, not for {}", most, kWhat[axis],
                patches[axis]);
  }
}

}  // namespace

int64_t padded_length(int64_t tokens) {
  return (tokens + kSequenceMultiple - 1) / kSequenceMultiple * kSequenceMultiple;
}

void check_caption(const TransformerConfig& config, int64_t tokens) {
  // Captions begin at 1, and what follows them has a position as well.
  const int64_t most = (config.axes_lens[0] - 2) / kSequenceMultiple * kSequenceMultiple;
  if (tokens <= most) return;
  throw Error(ErrorCode::kUsage, "prompt",
              "{} tokens are more than the {} that 'axes_lens' of the model has positions for",
              tokens, most);
}

TransformerShape shape_for(const Tensor& latents, std::span<const Tensor> captions) {
  TransformerShape shape{latents.shape()[0], latents.shape()[2], latents.shape()[3], 0};
  for (const Tensor& caption : captions) {
    shape.caption_tokens = std::max(shape.caption_tokens, padded_length(caption.shape()[0]));
  }
  shape.ragged = std::any_of(captions.begin(), captions.end(), [&](const Tensor& caption) {
    return padded_length(caption.shape()[0]) != shape.caption_tokens;
  });
  return shape;
}

std::shared_ptr<Graph> build_transformer(const TransformerConfig& config,
                                         const TransformerShape& shape,
                                         const TransformerOptions& options) {
  if (shape.height % config.patch_size != 0 || shape.width % config.patch_size != 0) {
    throw Error(ErrorCode::kInvalidInput, "size", "latents of {} x {} are no multiple of {}",
                shape.width, shape.height, config.patch_size);
  }
  auto graph = std::make_shared<Graph>();
  Builder(*graph, config, shape, options).build();
  return graph;
}

std::shared_ptr<Graph> build_blocks(const TransformerConfig& config, int64_t layers, int64_t batch,
                                    int64_t tokens, DType activations) {
  auto graph = std::make_shared<Graph>();
  const TransformerShape shape{batch, config.patch_size, config.patch_size, kSequenceMultiple};
  const TransformerOptions options{activations, false};
  Builder(*graph, config, shape, options).build_blocks(layers, tokens);
  return graph;
}

std::map<std::string, Tensor> transformer_inputs(const TransformerConfig& config,
                                                 const TransformerShape& shape,
                                                 const Tensor& latents, std::span<const float> time,
                                                 std::span<const Tensor> captions) {
  HT_ASSERT(static_cast<int64_t>(time.size()) == shape.batch);
  auto inputs = caption_inputs(config, shape, captions);
  Tensor times = Tensor::empty(DType::kF32, {shape.batch});
  std::copy(time.begin(), time.end(), times.mutable_as<float>().begin());
  inputs["time"] = times;
  inputs["latents"] = latents;
  return inputs;
}

std::map<std::string, Tensor> caption_inputs(const TransformerConfig& config,
                                             const TransformerShape& shape,
                                             std::span<const Tensor> captions) {
  HT_ASSERT(static_cast<int64_t>(captions.size()) == shape.batch);
  const int64_t rows = shape.height / config.patch_size, columns = shape.width / config.patch_size;
  const int64_t image = padded_length(rows * columns), half = config.head_dim() / 2;
  const int64_t tokens = image + shape.caption_tokens;
  const auto counts = [&] { return Tensor::zeros(DType::kI32, {shape.batch}); };
  Tensor caption_lengths = counts(), caption_extent = counts(), lengths = counts();
  Tensor features =
      Tensor::zeros(DType::kF32, {shape.batch, shape.caption_tokens, config.cap_feat_dim});
  Tensor cosine = Tensor::zeros(DType::kF32, {shape.batch, tokens, half});
  Tensor sine = Tensor::zeros(DType::kF32, {shape.batch, tokens, half});
  const nn::RopeAxes angles(config.rope_theta, config.axes_dims, nn::AnglePrecision::kFloat32);
  for (int64_t b = 0; b < shape.batch; ++b) {
    const Tensor& caption = captions[b];
    const int64_t length = caption.shape()[0], extent = padded_length(length);
    HT_ASSERT(caption.shape()[1] == config.cap_feat_dim && extent <= shape.caption_tokens);
    check_caption(config, length);
    check_patches(config, {rows, columns});
    caption_lengths.mutable_as<int32_t>()[b] = static_cast<int32_t>(length);
    caption_extent.mutable_as<int32_t>()[b] = static_cast<int32_t>(extent);
    lengths.mutable_as<int32_t>()[b] = static_cast<int32_t>(image + extent);
    std::copy(
        caption.as<float>().begin(), caption.as<float>().end(),
        features.mutable_as<float>().begin() + b * shape.caption_tokens * config.cap_feat_dim);
    const auto write = [&](int64_t token, std::array<int64_t, 3> position) {
      const int64_t at = (b * tokens + token) * half;
      angles.write(position, cosine.mutable_as<float>().data() + at,
                   sine.mutable_as<float>().data() + at);
    };
    // Image tokens follow the padded caption on the first axis; their padding sits at the origin.
    for (int64_t i = 0; i < image; ++i) {
      const bool patch = i < rows * columns;
      write(i, patch ? std::array{extent + 1, i / columns, i % columns} : std::array<int64_t, 3>{});
    }
    for (int64_t i = 0; i < extent; ++i) write(image + i, {1 + i, 0, 0});
  }
  return {{"captions", features},
          {"caption_lengths", caption_lengths},
          {"caption_extent", caption_extent},
          {"lengths", lengths},
          {"rope.cosine", cosine},
          {"rope.sine", sine}};
}

}  // namespace halftone::zimage
