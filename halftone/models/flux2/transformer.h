// The FLUX.2 transformer: blocks with a stream each for text and image that attend to both, then
// blocks on the joined sequence. Builds the graph for one shape, and prepares its inputs.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "halftone/graph/graph.h"
#include "halftone/models/flux2/config.h"

namespace halftone::flux2 {

// What a graph is built for. The sequence is text, then the latents' positions row by row, then
// references.
struct TransformerShape {
  int64_t batch = 1;
  int64_t height = 0, width = 0;  // of the latents
  int64_t text_tokens = 0;        // of every row: padding is attended, as the model was trained
  int64_t reference_tokens = 0;   // positions of latents of pictures that are looked at

  int64_t image_tokens() const { return height * width; }
  int64_t tokens() const { return text_tokens + image_tokens() + reference_tokens; }
};

struct TransformerOptions {
  DType activations = DType::kF32;  // F32 or BF16
  // Make every block's result an output, for tests: of the first kind of blocks the image's
  // stream, with references, and ".text" the text's.
  bool tap_blocks = false;
  bool mark_ends = false;  // of its blocks (nn/block_ends.h)
};

// Inputs of the graph:
//   latents     [B, C, h, w]
//   time        [B]  sigma
//   text        [B, text_tokens, joint_dim]
//   references  [B, reference_tokens, C], where there are any
//   rope.cosine, rope.sine  [B, tokens, head_dim / 2]
// Output: sample [B, C, h, w], the velocity.
std::shared_ptr<Graph> build_transformer(const TransformerConfig& config,
                                         const TransformerShape& shape,
                                         const TransformerOptions& options);

// All inputs, from latents [B, C, h, w], sigmas, one [text_tokens, joint_dim] tensor per row, and
// latents [B, C, h', w'] of each reference.
std::map<std::string, Tensor> transformer_inputs(const TransformerConfig& config,
                                                 const Tensor& latents,
                                                 std::span<const float> sigmas,
                                                 std::span<const Tensor> texts,
                                                 std::span<const Tensor> references = {});
// The shape for these.
TransformerShape shape_for(const Tensor& latents, std::span<const Tensor> texts,
                           std::span<const Tensor> references = {});

}  // namespace halftone::flux2
