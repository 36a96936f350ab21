// How files other than diffusers' name what FLUX.1's transformer is made of, and which of its
// linears a precision leaves alone.
#pragma once

#include "halftone/io/checkpoint.h"
#include "halftone/models/flux1/config.h"
#include "halftone/models/lora.h"
#include "halftone/models/weights.h"
#include "halftone/passes/quantize.h"

namespace halftone::flux1 {

bool is_flux1_file(const Checkpoint& checkpoint);

// The naming of a checkpoint of the transformer, told by its tensors: diffusers' own, or that of
// single files (one tensor for q, k, v and the MLP; the final shift before the scale), with or
// without a prefix.
WeightNames names_in(const Checkpoint& checkpoint);

// The config of a file that comes without one, from the shapes of its tensors. An Error where they
// do not tell: rotation axes are known for heads of 128 alone.
TransformerConfig infer_transformer_config(const Checkpoint& checkpoint, const WeightNames& names);

// Names of modules in adapters: diffusers', those of single files and XLabs'.
LoraTargets lora_targets(const Graph& transformer);

// The linears of blocks. Embedders, modulation and what follows the last block stay in high
// precision: little work, and every block or every pixel inherits their errors.
QuantizeRecipe default_recipe(const Format& format);

}  // namespace halftone::flux1
