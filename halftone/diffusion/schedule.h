// A sampling run as a value. Every sampler here is linear in the latents, the network's prediction,
// fresh noise and a few remembered tensors, so that all there is to know of a run is a table of
// factors, computed beforehand in double; whoever holds the tensors needs no sampler's code.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace halftone {

// What a network predicts of latents = signal * clean + noise_level * noise.
enum class Prediction : uint8_t {
  kVelocity,  // noise - clean, of flow matching
  kEpsilon,   // noise
  kV,         // signal * noise - noise_level * clean, of variance-preserving latents
  kSample,    // clean
};

// Factors of {latents, prediction, noise, memory 0, memory 1, ...}. What has a factor of zero is
// not read, and may hold anything.
using Combination = std::vector<float>;
inline constexpr size_t kLatents = 0, kPrediction = 1, kNoise = 2, kFirstMemory = 3;

struct SamplerStep {
  double sigma = 0;       // of flow, 1 .. 0; else noise over signal
  double timestep = 0;    // what a network that was trained on timesteps is told, 0 .. 1000
  float input_scale = 1;  // of the latents on their way into the network
  // What the latents of this step are made of; also how a picture enters a run midway.
  float signal = 0, noise_level = 1;
  Combination clean;                // the picture that the prediction amounts to: for previews
  Combination latents;              // of the next step
  std::vector<Combination> memory;  // what each memory becomes, from what all of them were

  bool uses_noise() const { return latents[kNoise] != 0; }
};

struct Schedule {
  std::vector<SamplerStep> steps;  // one per forward of the network
  size_t memories = 0;             // they may hold anything before the first step
  float initial_scale = 1;         // of the noise that the first latents are

  bool uses_noise() const;  // in some step: the sampler is stochastic
};

// The same run on latents as the network reads them, of variance 1 as a whole: every input_scale is
// 1 then. The last latents are the same.
Schedule as_read(Schedule schedule);

// What `apply_step` works on, all of one length. Noise may be empty where the step uses none.
struct SamplerState {
  std::span<float> latents;
  std::span<const float> prediction, noise;
  std::span<const std::span<float>> memories;
};
// Latents and memories of the next step in place of these; in float, terms in the order of the
// factors, so that a value has the same bits wherever it stands.
void apply_step(const SamplerStep& step, const SamplerState& state);

// A combination alone, such as `clean`, which reads no memory and no noise.
void combine(const Combination& factors, const SamplerState& state, std::span<float> out);

}  // namespace halftone
