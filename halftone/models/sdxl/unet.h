// SDXL's U-Net: ResNets down to lower resolutions and up again, what was computed on the way down
// being read on the way up, and transformers between them, which attend to the text. Builds the
// graph for one shape.
#pragma once

#include <memory>

#include "halftone/graph/graph.h"
#include "halftone/models/sdxl/config.h"

namespace halftone::sdxl {

struct UnetShape {
  int64_t batch = 1;
  int64_t height = 0, width = 0;  // of the latents: multiples of UnetConfig::multiple()
  int64_t text_tokens = 0;        // of every row: padding is attended, as the model was trained
};

struct UnetOptions {
  DType activations = DType::kF32;  // F32 or BF16
  bool tap_blocks = false;          // make the result of every ResNet and transformer an output
  bool mark_ends = false;           // make outputs of where what is deeper begins and ends
};

// Inputs of the graph:
//   latents  [B, C, h, w]  of variance 1 as a whole, whatever the sampler
//   time     [B]           from 0 to 1000
//   text     [B, text_tokens, text_dim]
//   pooled   [B, pooled_dim]
//   sizes    [B, 6]        original height and width, top and left of the crop, height and width
// Output: sample [B, C, h, w], what the scheduler's prediction type says: mostly the noise.
std::shared_ptr<Graph> build_unet(const UnetConfig& config, const UnetShape& shape,
                                  const UnetOptions& options);

}  // namespace halftone::sdxl
