// The FLUX.1 transformer: blocks with a stream each for text and image that attend to both, then
// blocks on the joined sequence. Builds the graph for one shape, and prepares its inputs.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "halftone/graph/graph.h"
#include "halftone/models/flux1/config.h"

namespace halftone::flux1 {

// What a graph is built for. The sequence is text, then patches of the latents row by row.
struct TransformerShape {
  int64_t batch = 1;
  int64_t height = 0, width = 0;  // of the latents
  int64_t text_tokens = 0;        // of every row: padding is attended, as the model was trained

  int64_t rows() const { return height / TransformerConfig::kPatch; }
  int64_t columns() const { return width / TransformerConfig::kPatch; }
  int64_t tokens() const { return text_tokens + rows() * columns(); }
};

struct TransformerOptions {
  DType activations = DType::kF32;  // F32 or BF16
  // Make every block's result an output, for tests: of the first kind of blocks the image's
  // stream, and ".text" the text's.
  bool tap_blocks = false;
  bool mark_ends = false;  // of its blocks (nn/block_ends.h)
};

// Inputs of the graph:
//   latents      [B, C, h, w]
//   time         [B]  sigma
//   told.guidance  [B], where the config says so: the strength of guidance that the network
//   imitates text         [B, text_tokens, joint_dim] pooled       [B, pooled_dim] rope.cosine,
//   rope.sine  [B, tokens, head_dim / 2]
// Output: sample [B, C, h, w], the velocity.
std::shared_ptr<Graph> build_transformer(const TransformerConfig& config,
                                         const TransformerShape& shape,
                                         const TransformerOptions& options);

// The rotation tables.
std::map<std::string, Tensor> position_inputs(const TransformerConfig& config,
                                              const TransformerShape& shape);

}  // namespace halftone::flux1
