// The Stable Diffusion 3 transformer: blocks with a stream each for text and image that attend to
// both, with learned positions instead of rotations. Builds the graph for one shape.
#pragma once

#include <memory>
#include <set>

#include "halftone/graph/graph.h"
#include "halftone/models/sd3/config.h"

namespace halftone::sd3 {

struct TransformerShape {
  int64_t batch = 1;
  int64_t height = 0, width = 0;  // of the latents
  int64_t text_tokens = 0;        // of every row: padding is attended, as the model was trained

  int64_t rows() const { return height / TransformerConfig::kPatch; }
  int64_t columns() const { return width / TransformerConfig::kPatch; }
};

struct TransformerOptions {
  DType activations = DType::kF32;  // F32 or BF16
  bool tap_blocks = false;          // make every block's result an output: the image's, and ".text"
  bool mark_ends = false;           // of its blocks (nn/block_ends.h)
};

// Inputs of the graph:
//   latents  [B, C, h, w]
//   time     [B]  from 0 to 1000
//   text     [B, text_tokens, joint_dim]
//   pooled   [B, pooled_dim]
// Output: sample [B, C, h, w], the velocity.
std::shared_ptr<Graph> build_transformer(const TransformerConfig& config,
                                         const TransformerShape& shape,
                                         const TransformerOptions& options);

}  // namespace halftone::sd3
