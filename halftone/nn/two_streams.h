// Blocks in which text and picture have a stream of tokens each, with weights of its own, and
// attend to both: what FLUX and Stable Diffusion 3 have in common.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "halftone/nn/attention.h"
#include "halftone/nn/modulation.h"

namespace halftone::nn {

// What the two streams of a block call the same parts, as diffusers has them.
struct StreamNames {
  const char *q, *k, *v, *norm_q, *norm_k, *out, *feed_forward;
};
inline constexpr StreamNames kTextNames = {"add_q_proj",   "add_k_proj",   "add_v_proj",
                                           "norm_added_q", "norm_added_k", "to_add_out",
                                           "ff_context"};
inline constexpr StreamNames kPictureNames = {"to_q",   "to_k",     "to_v", "norm_q",
                                              "norm_k", "to_out.0", "ff"};

struct Stream {
  const StreamNames& names;
  Value x;                             // [B, T, C]
  std::optional<RopeTables> rope;      // none: queries and keys have no positions
  std::vector<Modulation> modulation;  // of attention and of the MLP
};

// What tells one family's blocks from another's.
struct StreamStyle {
  int64_t head_dim = 128;
  float eps = 1e-6f;
  Bias bias = Bias::kYes;
  bool norm_heads = true;  // queries and keys, by head
  std::function<Value(const Scope& feed_forward, Value x)> feed_forward;
};

// A query, a key and a value for every token: [B, T, H, D].
struct Heads {
  Value q, k, v;
};
Heads project(const Scope& attn, const StreamNames& names, Value x,
              const std::optional<RopeTables>& rope, const StreamStyle& style);
// What each of two sequences sees in both, one after the other: [B, T, C] each.
std::array<Value, 2> attend_to_both(const Heads& first, const Heads& second);

// The stream's tokens as attention reads them, and what a block adds to them.
Value attention_input(const Stream& stream, const StreamStyle& style);
void add_attention(const Scope& block, Stream& stream, Value attended, const StreamStyle& style);
void add_feed_forward(const Scope& block, Stream& stream, const StreamStyle& style);

// A whole block: text and picture attend to both, text first, then each has its MLP.
void two_stream_block(const Scope& block, Stream& text, Stream& picture, const StreamStyle& style);

// net.2(gelu(net.0.proj x)), four times as wide between, with biases.
Value gelu_feed_forward(const Scope& feed_forward, Value x);

}  // namespace halftone::nn
