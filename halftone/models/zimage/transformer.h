// The Z-Image transformer: a single stream over image and caption tokens, refined apart first.
// Builds the graph for one shape, and prepares the inputs that go with it.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"
#include "halftone/models/zimage/config.h"

namespace halftone::zimage {

// Sequences are padded to a multiple of this with learned tokens, which are attended.
inline constexpr int64_t kSequenceMultiple = 32;

// What a graph is built for.
struct TransformerShape {
  int64_t batch = 1;
  int64_t height = 0, width = 0;  // of the latents
  int64_t caption_tokens = 0;     // longest padded caption, a multiple of kSequenceMultiple
  // Captions of different padded lengths, so that rows attend to different numbers of tokens.
  // Otherwise attention needs no lengths, and is faster without.
  bool ragged = true;
};

struct TransformerOptions {
  DType activations = DType::kF32;  // F32 or BF16
  bool tap_blocks = false;          // make every block's result an output, for tests
  bool mark_ends = false;           // of its blocks (nn/block_ends.h)
  bool velocity = false;            // turn the sign of the prediction, which is data minus noise
};

// Inputs of the graph:
//   latents          [B, C, H, W]
//   time             [B]  1 - sigma
//   captions         [B, caption_tokens, cap_feat_dim]
//   caption_lengths  I32 [B]  tokens that are not padding
//   lengths          I32 [B]  image and caption with their learned padding: what is attended
//   caption_extent   I32 [B]  the caption with its learned padding
//   rope.cosine, rope.sine  [B, image tokens + caption tokens, head_dim / 2]
// Output: sample [B, C, H, W], the model's prediction.
std::shared_ptr<Graph> build_transformer(const TransformerConfig& config,
                                         const TransformerShape& shape,
                                         const TransformerOptions& options);

// Modulated blocks alone, for measuring. Inputs: x [B, tokens, dim] in the activations' dtype,
// condition [B, modulation_dim], rope.cosine and rope.sine [B, tokens, head_dim / 2]. Output: y.
std::shared_ptr<Graph> build_blocks(const TransformerConfig& config, int64_t layers, int64_t batch,
                                    int64_t tokens, DType activations);

// All inputs, from latents [B, C, H, W], times (1 - sigma) and one [tokens, cap_feat_dim] tensor
// per row. Sizes that the config does not allow are Errors.
std::map<std::string, Tensor> transformer_inputs(const TransformerConfig& config,
                                                 const TransformerShape& shape,
                                                 const Tensor& latents, std::span<const float> time,
                                                 std::span<const Tensor> captions);

// Those of them that captions decide: all but latents and time.
std::map<std::string, Tensor> caption_inputs(const TransformerConfig& config,
                                             const TransformerShape& shape,
                                             std::span<const Tensor> captions);

int64_t padded_length(int64_t tokens);
// An Error that names the prompt where it has more tokens than there are positions for.
void check_caption(const TransformerConfig& config, int64_t tokens);
// The shape for these captions.
TransformerShape shape_for(const Tensor& latents, std::span<const Tensor> captions);

}  // namespace halftone::zimage
