// How checkpoints of Qwen3 name the weights of a text encoder.
#pragma once

#include "halftone/io/checkpoint.h"
#include "halftone/models/qwen3/text_encoder.h"
#include "halftone/models/weights.h"

namespace halftone::qwen3 {

// Saved with or without a language model around it. Layers that are not run, and what follows them,
// may be there.
WeightNames names_in(const Checkpoint& checkpoint, const Config& config, const Options& options);

// All linears of layers in this format, with inputs as they are.
QuantizeRecipe layers_recipe(const Format& format);

}  // namespace halftone::qwen3
