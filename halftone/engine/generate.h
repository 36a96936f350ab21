// From a prompt to pictures: jobs started, stepped together and decoded.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "halftone/base/progress.h"
#include "halftone/engine/job.h"

namespace halftone {

struct GenerateRequest : JobRequest {
  int count = 1;  // picture i has seed + i
  int batch = 1;  // pictures that share a forward
  // `noise` is F32 [count, C, h, w] here.
};

struct GenerateSeconds {
  double text = 0, denoise = 0, decode = 0;
  // Of `denoise`: the first step, in which weights may be placed and kernels compiled and recorded.
  double first_step = 0;
};

// One of a request's pictures.
struct GeneratedPicture {
  int index = 0;
  Tensor latents;                          // F32 [1, C, h, w]
  Tensor image;                            // F32 [3, H, W]
  std::array<std::vector<int>, 2> reused;  // as Job::reused has them
};
using PictureFn = std::function<void(const GeneratedPicture&)>;

// What a job that is done has come to. NaN in it is an Error.
GeneratedPicture finish_picture(Stepper& stepper, const Job& job, int index,
                                GenerateSeconds& seconds);

// Memory that the request takes, known before it runs. What the model does not allow (a size, a
// prompt that is too long) is an Error.
ModelMemory plan_generate(Pipeline& pipeline, const GenerateRequest& request);
PhaseMemory plan_generate_phases(Pipeline& pipeline, const GenerateRequest& request);

// Hands over each picture as it is finished, and keeps none. Progress counts denoising steps over
// all batches; it is called between steps and may throw to cancel.
GenerateSeconds generate(Pipeline& pipeline, const GenerateRequest& request,
                         const ProgressFn& progress, const PictureFn& finished);

// All pictures at once.
struct GenerateResult {
  Tensor latents;              // F32 [count, C, h, w]
  std::vector<Tensor> images;  // F32 [3, H, W] each
  GenerateSeconds seconds;
};
GenerateResult generate(Pipeline& pipeline, const GenerateRequest& request,
                        const ProgressFn& progress);

}  // namespace halftone
