// What a model's configuration files say, without its weights: the parts that build graphs, and how
// it is sampled. Cheap to read, immutable and shared.
#pragma once

#include <memory>

#include "halftone/models/families.h"

namespace halftone {

struct ModelParts {
  const Family* family = nullptr;
  ModelFiles files;
  std::shared_ptr<const Denoiser> denoiser;
  std::shared_ptr<const Conditioner> conditioner;
  std::shared_ptr<const Codec> codec;
  Sampling sampling;     // the family's
  Sampling recommended;  // with what the folder says of itself, in halftone.json
  // Of the configurations and tokenizers that the parts were read from: what a result follows from
  // besides weights and what was asked.
  std::string settings_hash;

  // Everything that can be wrong with the configuration is wrong here.
  static ModelParts read(const FoundModel& found);

  // Latents [1, C, h, w] of a picture; sizes that the model does not allow are an Error.
  Shape latent_shape(int64_t width, int64_t height) const;
  AdaptedModel adapted() const;   // all that adapters can change
  int64_t size_multiple() const;  // of widths and heights, in pixels
  // Where the denoiser's weights are: a file, or its folder.
  std::filesystem::path denoiser_path() const;
};

}  // namespace halftone
