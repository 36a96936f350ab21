// How files other than diffusers' name what Z-Image's transformer is made of, and which of its
// linears a precision leaves alone.
#pragma once

#include <string>

#include "halftone/io/checkpoint.h"
#include "halftone/models/lora.h"
#include "halftone/models/weights.h"
#include "halftone/models/zimage/config.h"
#include "halftone/passes/quantize.h"

namespace halftone::zimage {

// The naming of a checkpoint of the transformer, told by its tensors: diffusers' own, or that of
// single files (one tensor for q, k and v), with or without a prefix.
WeightNames names_in(const Checkpoint& checkpoint);

// The config of a file that comes without one, from the shapes of its tensors. An Error where they
// do not tell: rotation axes are known for heads of 128 alone.
TransformerConfig infer_transformer_config(const Checkpoint& checkpoint, const WeightNames& names);

// Names of modules in adapters: diffusers' and those of single files.
LoraTargets lora_targets(const Graph& transformer);

// The linears of blocks; modulation, embedders and the final layer stay in high precision.
QuantizeRecipe default_recipe(const Format& format);

}  // namespace halftone::zimage
