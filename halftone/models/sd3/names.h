// How files other than diffusers' name what Stable Diffusion 3's transformer is made of, and which
// of its linears a precision leaves alone.
#pragma once

#include "halftone/io/checkpoint.h"
#include "halftone/models/lora.h"
#include "halftone/models/sd3/config.h"
#include "halftone/models/weights.h"
#include "halftone/passes/quantize.h"

namespace halftone::sd3 {

bool is_sd3_file(const Checkpoint& checkpoint);

// The naming of a checkpoint of the transformer, told by its tensors: diffusers' own, or that of
// single files (one tensor for q, k and v; shifts before scales where a block ends with them).
WeightNames names_in(const Checkpoint& checkpoint);

// The config of a file that comes without one, from the shapes of its tensors.
TransformerConfig infer_transformer_config(const Checkpoint& checkpoint, const WeightNames& names);

// Names of modules in adapters: diffusers' and those of single files.
LoraTargets lora_targets(const Graph& transformer);

// The linears of blocks. Embedders, modulation and what follows the last block stay in high
// precision: little work, and every block or every pixel inherits their errors.
QuantizeRecipe default_recipe(const Format& format);

}  // namespace halftone::sd3
