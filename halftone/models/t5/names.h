// How checkpoints name the weights of T5's encoder.
#pragma once

#include "halftone/models/t5/text_encoder.h"
#include "halftone/models/weights.h"

namespace halftone::t5 {

// `within` is what all names begin with in a file that holds other components, too, such as
// "text_encoders.t5xxl.transformer."; tensors outside of it are of no concern then.
WeightNames names_in(const Checkpoint& checkpoint, const std::string& within = "");

// The config of an encoder that comes without one, from the shapes of its tensors.
Config infer_config(const Checkpoint& checkpoint, const std::string& within);

// All linears of layers in this format, with inputs as they are.
QuantizeRecipe layers_recipe(const Format& format);

}  // namespace halftone::t5
