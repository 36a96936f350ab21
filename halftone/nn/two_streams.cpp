#include "halftone/nn/two_streams.h"

namespace halftone::nn {

Heads project(const Scope& attn, const StreamNames& names, Value x,
              const std::optional<RopeTables>& rope, const StreamStyle& style) {
  const auto heads = [&](const char* name) {
    return split_heads(linear(attn[name], x, x.dim(2), style.bias), style.head_dim);
  };
  const auto compared = [&](const char* name, const char* norm) {
    Value y = heads(name);
    if (style.norm_heads) y = rms_norm(attn[norm], y, style.eps);
    if (!rope) return y;
    return halftone::rope(y, rope->cosine, rope->sine, {RopeLayout::kInterleaved, false});
  };
  const Value q = compared(names.q, names.norm_q), k = compared(names.k, names.norm_k);
  return {q, k, heads(names.v)};
}

std::array<Value, 2> attend_to_both(const Heads& first, const Heads& second) {
  const Value q = concat({first.q, second.q}, 1), k = concat({first.k, second.k}, 1);
  const Value y = attend(q, k, concat({first.v, second.v}, 1));
  const int64_t border = first.q.dim(1);
  return {slice(y, 1, 0, border), slice(y, 1, border, y.dim(1))};
}

Value attention_input(const Stream& stream, const StreamStyle& style) {
  return modulate(layer_norm(stream.x, style.eps), stream.modulation[0]);
}

void add_attention(const Scope& block, Stream& stream, Value attended, const StreamStyle& style) {
  const Scope attn = block["attn"];
  const Value out = linear(attn[stream.names.out], attended, stream.x.dim(2), style.bias);
  stream.x = add_gated(stream.x, out, stream.modulation[0]);
}

void add_feed_forward(const Scope& block, Stream& stream, const StreamStyle& style) {
  const Value x = modulate(layer_norm(stream.x, style.eps), stream.modulation[1]);
  stream.x = add_gated(stream.x, style.feed_forward(block[stream.names.feed_forward], x),
                       stream.modulation[1]);
}

void two_stream_block(const Scope& block, Stream& text, Stream& picture, const StreamStyle& style) {
  const Scope attn = block["attn"];
  const Heads a = project(attn, text.names, attention_input(text, style), text.rope, style);
  const Heads b =
      project(attn, picture.names, attention_input(picture, style), picture.rope, style);
  const auto [to_text, to_picture] = attend_to_both(a, b);
  add_attention(block, text, to_text, style);
  add_feed_forward(block, text, style);
  add_attention(block, picture, to_picture, style);
  add_feed_forward(block, picture, style);
}

Value gelu_feed_forward(const Scope& feed_forward, Value x) {
  const Scope net = feed_forward["net"];
  const Value hidden = gelu(linear(net["0"]["proj"], x, 4 * x.dim(2), Bias::kYes));
  return linear(net["2"], hidden, x.dim(2), Bias::kYes);
}

}  // namespace halftone::nn
