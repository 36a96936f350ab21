// How checkpoints name the weights of a CLIP text encoder.
#pragma once

#include "halftone/models/clip_text/text_encoder.h"
#include "halftone/models/lora.h"
#include "halftone/models/weights.h"

namespace halftone::clip_text {

// The layout is seen from the tensors: transformers', with or without "text_model.", or OpenCLIP's.
// `within` is what all names begin with in a file that holds other components, too, such as
// "text_encoders.clip_l.transformer."; tensors outside of it are of no concern then.
WeightNames names_in(const Checkpoint& checkpoint, const Config& config, const Options& options,
                     const std::string& within = "");

// The config of an encoder that comes without one, from the shapes of its tensors; what they do not
// tell is as in `usual`.
Config infer_config(const Checkpoint& checkpoint, const std::string& within, const Config& usual);
// Its linears, under names with and without "text_model.". Those of layers that do not run are
// known, too, and change nothing.
LoraTargets lora_targets(const Graph& graph, const Config& config);

// All linears of layers in this format, with inputs as they are.
QuantizeRecipe layers_recipe(const Format& format);

}  // namespace halftone::clip_text
