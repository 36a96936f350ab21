// How files other than diffusers' name what SDXL's U-Net is made of, and which of its linears a
// precision leaves alone.
#pragma once

#include "halftone/io/checkpoint.h"
#include "halftone/models/lora.h"
#include "halftone/models/sdxl/config.h"
#include "halftone/models/weights.h"
#include "halftone/passes/quantize.h"

namespace halftone::sdxl {

bool is_sdxl_file(const Checkpoint& checkpoint);

// The naming of a checkpoint of the U-Net, told by its tensors: diffusers' own, or that of single
// files, which number the blocks of all levels through.
WeightNames names_in(const Checkpoint& checkpoint);

// The config of a file that comes without one, from the shapes of its tensors.
UnetConfig infer_unet_config(const Checkpoint& checkpoint, const WeightNames& names);

// What a file says of how it was trained, by tensors that stand for nothing else.
struct FileMarks {
  bool v_prediction = false, zero_terminal_snr = false;
};
// A file that says something that is not supported is an Error.
FileMarks marks_of(const Checkpoint& checkpoint);

// Names of modules in adapters: diffusers', old and new, and those of single files.
LoraTargets lora_targets(const Graph& unet, const UnetConfig& config);

// The attention and feed-forward linears of transformer blocks. What stands around them stays in
// high precision: little work, and every block or every pixel inherits its errors.
QuantizeRecipe default_recipe(const Format& format);

}  // namespace halftone::sdxl
