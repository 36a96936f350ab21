// What a sampler needs of a diffusion model, whatever its family.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "halftone/tensor/tensor.h"

namespace halftone {

// A prompt as the denoiser takes it.
struct Condition {
  Tensor states;  // F32 [tokens, features]
};

struct ModelMemory {
  int64_t weights = 0;
  int64_t arenas = 0;
};

class DiffusionModel {
 public:
  virtual ~DiffusionModel() = default;

  virtual std::string family() const = 0;
  // Latents [1, C, h, w] of a picture; sizes that the model does not allow are an Error.
  virtual Shape latent_shape(int64_t width, int64_t height) const = 0;
  virtual int64_t image_tokens(const Shape& latents) const = 0;

  // An Error where the prompt has more tokens than the model takes.
  virtual Condition encode(const std::string& prompt) = 0;
  // The velocity d latents / d sigma of each row, at a sigma of its own.
  virtual Tensor velocity(const Tensor& latents, std::span<const float> sigmas,
                          std::span<const Condition> conditions) = 0;
  // Pictures [B, 3, H, W], about -1 to 1.
  virtual Tensor decode(const Tensor& latents) = 0;

  virtual ModelMemory memory() const = 0;
  virtual std::string hash() const = 0;  // of the checkpoint files
};

}  // namespace halftone
