// How far a model in one precision is from the same model in another: prediction by prediction on
// the same inputs, whole runs of the sampler, pictures, and layer by layer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "halftone/base/progress.h"
#include "halftone/engine/certificate.h"
#include "halftone/engine/generate.h"
#include "halftone/engine/spread.h"
#include "halftone/quantize/text_parity.h"

namespace halftone {

struct ParityOptions {
  std::vector<std::string> prompts;
  int seeds = 1;  // per prompt
  uint64_t first_seed = 0;
  int64_t width = 0, height = 0;
  int steps = 8;
  float guidance = 0;
  // How much the reference's input is disturbed to learn what chaos alone does, relatively.
  double disturbance = 1e-3;
  int layer_cases = 2;  // pictures whose layers are compared as well
};

// What the reference did with one prompt and seed.
struct ReferenceCase {
  std::string prompt;
  uint64_t seed = 0;
  Condition positive, negative;
  std::vector<Tensor> latents;     // before each step, and at the end
  std::vector<Tensor> velocities;  // as the sampler took them, guidance included
  BlockOutputs blocks;             // in the middle of the run, of the first few cases
  Tensor image;
};

struct ReferenceRun {
  std::string family;
  Schedule schedule;
  std::vector<float> sigmas;  // steps + 1
  std::vector<ReferenceCase> cases;
  std::map<std::string, std::vector<NamedTensors>> texts;  // prompt -> what each encoder gave
  double seconds_per_step = 0;
};

struct ParityResult {
  std::string name;      // a precision, "text fp8" where it is the encoders', or "floor"
  std::string how;       // native, emulated
  bool of_text = false;  // the text encoders' precision differs, and not the denoiser's
  int64_t weight_bytes = 0;
  double seconds_per_step = 0;
  float cache = 0;          // the threshold of its step cache; 0: none
  double reused_share = 0;  // of the steps of whole runs, on average

  // Of one prediction on the reference's own latents, by step and over all.
  std::vector<Spread> velocity_cosine, velocity_error;
  Spread velocity_cosine_all, velocity_error_all;
  // Of the latents after one such step: a step is small, so this hides errors.
  std::vector<Spread> step_cosine;
  // Of the latents of a whole run from the same noise, after each step. The sampler is the
  // deterministic Euler one, so that this is both the rollout and the real sampler.
  std::vector<Spread> rollout_cosine;
  Spread ssim, psnr;
  std::vector<TextParity> texts;                            // what the encoders give
  std::vector<std::pair<std::string, double>> layer_error;  // block -> relative error

  struct Case {
    std::string prompt;
    uint64_t seed = 0;
    double velocity_cosine = 0;  // the worst step's
    double latent_cosine = 0, ssim = 0, psnr = 0;
    Tensor image;
    std::vector<int> reused;  // steps of the whole run at which the prompt's row did, from 1
  };
  std::vector<Case> cases;  // in the order of the reference's
};

// Progress counts predictions. The callback may throw to cancel.
ReferenceRun run_reference(Pipeline& model, const SchedulerConfig& scheduler,
                           const ParityOptions& options, const ProgressFn& progress);

// What is done to a model on top of its precision.
struct Variation {
  // Its inputs are disturbed by that much: the reference against itself is then the floor below
  // which differences mean nothing.
  double disturbance = 0;
  float cache = 0;  // the threshold of a step cache
  // Whether predictions on the reference's own latents are compared, too, or whole runs alone.
  bool single_steps = true;
};
// `model` against the reference.
ParityResult compare_with(const ReferenceRun& reference, Pipeline& model,
                          const ParityOptions& options, const Variation& variation,
                          const ProgressFn& progress);

// Predictions that each takes, for progress bars.
int64_t reference_predictions(const ParityOptions& options);
int64_t compared_predictions(const ParityOptions& options);

// What is written into a file that was measured so.
Certificate certificate_of(const ParityResult& result, const ParityOptions& options);

}  // namespace halftone
