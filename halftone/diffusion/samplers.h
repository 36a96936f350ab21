// Inside of diffusion/: a function per kind of scheduler, and what they share. They work in double
// on the sigmas that diffusers rounds to float, and round factors last.
#pragma once

#include <array>
#include <vector>

#include "halftone/diffusion/scheduler.h"

namespace halftone {

Schedule flow_match_schedule(const SchedulerConfig& config, int steps, int64_t image_tokens);
Schedule euler_schedule(const SchedulerConfig& config, int steps);  // ancestral too
Schedule ddim_schedule(const SchedulerConfig& config, int steps);
Schedule dpm_solver_schedule(const SchedulerConfig& config, int steps, int64_t image_tokens);
Schedule unipc_schedule(const SchedulerConfig& config, int steps, int64_t image_tokens);

// latents = alpha * clean + sigma * noise
struct NoiseLevel {
  double alpha, sigma;
  double lambda() const;  // half the logarithm of the signal-to-noise ratio
};
NoiseLevel preserving_level(double sigma);  // variance-preserving, from noise over signal
NoiseLevel flow_level(double sigma);

// Factors of latents and prediction that give the clean picture.
std::array<double, 2> clean_factors(Prediction prediction, const NoiseLevel& level);

// A linear combination while it is worked out.
class Factors {
 public:
  explicit Factors(size_t memories) : values_(kFirstMemory + memories) {}
  static Factors of(size_t memories, size_t source) {
    Factors f(memories);
    f.values_[source] = 1;
    return f;
  }
  Factors& add(double factor, const Factors& other);
  Factors& add(double factor, size_t source) {
    values_[source] += factor;
    return *this;
  }
  Combination rounded() const { return {values_.begin(), values_.end()}; }

 private:
  std::vector<double> values_;
};

// The clean picture that a prediction at a level amounts to.
Factors clean_picture(Prediction prediction, const NoiseLevel& level, size_t memories);

// phi_0 = e^z, phi_k+1 = (phi_k - 1/k!) / z: the integrals of exponential integrators. Accurate
// near 0 too; z may be -infinity.
double phi(int k, double z);

// Levels of the steps of a multistep solver, and where the last one ends.
struct SolverLevels {
  std::vector<double> sigmas;     // steps + 1
  std::vector<double> timesteps;  // steps
  bool flow = false;

  NoiseLevel at(size_t i) const {
    return flow ? flow_level(sigmas[i]) : preserving_level(sigmas[i]);
  }
  // The highest order, up to `most`, for which there are levels before i that differ.
  int distinct(size_t i, int most) const;
};
SolverLevels solver_levels(const SchedulerConfig& config, int steps, int64_t image_tokens);
// Step i without latents and memories.
SamplerStep solver_step(const SchedulerConfig& config, const SolverLevels& levels, size_t i,
                        size_t memories);

}  // namespace halftone
