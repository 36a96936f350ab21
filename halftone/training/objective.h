// What a denoiser is taught: from a clean picture, noise of some strength and what is to be
// predicted from both. Strengths are drawn from a key, so that a run can be repeated and resumed.
#pragma once

#include <memory>
#include <optional>

#include "halftone/base/random.h"
#include "halftone/diffusion/noise_table.h"
#include "halftone/graph/graph.h"

namespace halftone {

// How strong noise is drawn for velocity models: sigma = logistic(mean + deviation * gaussian),
// moved towards noise by shift * sigma / (1 + (shift - 1) * sigma).
struct SigmaDraw {
  double mean = 0, deviation = 1, shift = 1;
};

// One row of a batch: noisy = latents * x + noise * n, target = target_latents * x +
// target_noise * n.
struct Noising {
  float latents = 0, noise = 0, target_latents = 0, target_noise = 0;
  double sigma = 0;     // what the denoiser's time follows from
  double timestep = 0;  // of training, for models that are told it
  float weight = 1;     // of the loss
};

// For a scheduler's kind of prediction. Velocity draws sigma; the others draw one of the training's
// timesteps evenly. `min_snr` above 0 limits the weight of easy timesteps (min-SNR-gamma).
class Objective {
 public:
  Objective(const SchedulerConfig& scheduler, const SigmaDraw& how, double min_snr = 0);
  Noising draw(PhiloxKey key) const;

 private:
  Noising draw_velocity(PhiloxKey key) const;
  Noising draw_timestep(PhiloxKey key) const;

  SchedulerConfig scheduler_;
  SigmaDraw how_;
  double min_snr_;
  std::optional<NoiseTable> table_;  // of what is no flow
};

// The graph with noise put on its input "latents", which is clean now. Adds
//   inputs   noising [rows, 4], the factors above; noise_keys I32 [rows, 4]
//   output   target, as add_loss takes it, where it is wanted
std::shared_ptr<Graph> add_noising(const Graph& graph, bool target = true);

}  // namespace halftone
