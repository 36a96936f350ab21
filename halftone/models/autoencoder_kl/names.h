// How files other than diffusers' name what an AutoencoderKL is made of.
#pragma once

#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/weights.h"

namespace halftone::autoencoder_kl {

// The naming is seen from the tensors: diffusers' own, or that of the original code, whose decoder
// counts from the picture and whose attention is made of convolutions of 1 x 1. `within` is what
// all names begin with in a file that holds other components, too; others are of no concern then.
WeightNames names_in(const Checkpoint& checkpoint, const std::string& within = "");

// The config of an autoencoder that comes without one, from the shapes of its tensors; factors of
// latents, which they do not tell, are those of `usual`.
Config infer_config(const Checkpoint& checkpoint, const std::string& within, const Config& usual);

}  // namespace halftone::autoencoder_kl
