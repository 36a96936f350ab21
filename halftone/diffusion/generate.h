// From a prompt to pictures: noise, the sampler's steps with guidance, and the decoder.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "halftone/base/progress.h"
#include "halftone/diffusion/flow_match_euler.h"
#include "halftone/models/model.h"

namespace halftone {

struct GenerateRequest {
  std::string prompt, negative;
  int64_t width = 1024, height = 1024;
  int steps = 8;
  float guidance = 0;  // 0 is none; prediction + guidance * (prediction - negative prediction)
  uint64_t seed = 0;   // picture i of a request has seed + i
  int count = 1;
  int batch = 1;                // pictures that share a forward
  std::optional<Tensor> noise;  // F32 [count, C, h, w] instead of the seed's
};

struct GenerateSeconds {
  double text = 0, denoise = 0, decode = 0;
};

// One of a request's pictures.
struct GeneratedPicture {
  int index = 0;
  Tensor latents;  // F32 [1, C, h, w]
  Tensor image;    // F32 [3, H, W]
};
using PictureFn = std::function<void(const GeneratedPicture&)>;

// Memory that the request takes, known before it runs. What the model does not allow (a size, a
// prompt that is too long) is an Error.
ModelMemory plan_generate(DiffusionModel& model, const GenerateRequest& request);

// Hands over each picture as it is finished, and keeps none. Progress counts denoising steps over
// all batches; it is called between steps and may throw to cancel.
GenerateSeconds generate(DiffusionModel& model, const FlowMatchConfig& schedule,
                         const GenerateRequest& request, const ProgressFn& progress,
                         const PictureFn& finished);

// All pictures at once.
struct GenerateResult {
  Tensor latents;              // F32 [count, C, h, w]
  std::vector<Tensor> images;  // F32 [3, H, W] each
  GenerateSeconds seconds;
};
GenerateResult generate(DiffusionModel& model, const FlowMatchConfig& schedule,
                        const GenerateRequest& request, const ProgressFn& progress);

// Gaussian noise of one picture, a function of its seed alone.
Tensor seeded_noise(const Shape& shape, uint64_t seed);

}  // namespace halftone
