// Runs a model's own sampler over prompts and watches what its linears are given: how large, at
// every sigma. What the predictions were is kept for measuring recipes against.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "halftone/base/progress.h"
#include "halftone/engine/generate.h"
#include "halftone/numerics/bf16.h"
#include "halftone/quantize/compensate.h"

namespace halftone {

struct CalibrationOptions {
  std::vector<std::string> prompts;  // one picture each, seeds counting up
  // Run after those, and not watched: predictions are kept of these alone, so that recipes are held
  // to what calibration did not see. Without any, predictions are kept of `prompts`.
  std::vector<std::string> held_out;
  uint64_t first_seed = 0;
  int64_t width = 0, height = 0;
  int steps = 8;
  float guidance = 0;         // against the empty prompt
  int points_per_prompt = 3;  // predictions that are kept, spread over the sigmas
  int threads = 1;

  bool moments = false;  // of inputs, for compensated rounding
  // Of these inputs alone, by the first of the weights that read them; without: of all.
  std::optional<std::set<std::string>> moments_of;
  // A further pass for more moments: nothing else is recorded, and nothing held out is run.
  bool only_moments = false;
  // Given the moments when they are complete, which are dropped after that: before anything that is
  // held out is run.
  std::function<void(const struct Calibration&)> use_moments;
  // Moments of more bytes than this are not kept in the file: writing them after every prompt would
  // take longer than gathering them anew.
  int64_t most_kept = int64_t{1} << 30;
};

// What one linear was given.
struct InputRange {
  // Largest magnitude by step of the sampler; NaN or Inf where a value was.
  std::vector<float> amax;
  // Values by magnitude: bin i counts 2^(i - kLowest) <= |x| < twice that; zeros are in none.
  static constexpr int kBins = 64, kLowest = 40;
  std::array<int64_t, kBins> histogram{};

  float largest() const {  // over all steps; bits of magnitudes order NaN above Inf above numbers
    uint32_t bits = 0;
    for (const float a : amax) bits = std::max(bits, magnitude_bits(a));
    return bit_cast<float>(bits);
  }
  bool finite() const { return std::isfinite(largest()); }
};

// A prediction that the model made on the way: what recipes are held to.
struct CalibrationPoint {
  int prompt = 0, step = 0;
  Tensor latents, velocity;
};

struct Calibration {
  std::vector<SamplerStep> steps;
  std::map<std::string, InputRange> inputs;  // by weight
  std::vector<CalibrationPoint> points;
  std::vector<Condition> conditions;  // by prompt, those held out being the last
  // Of inputs, by the first of the weights that read them; empty where they were not asked for.
  std::map<std::string, InputMoments> moments;
  const InputMoments* moments_of(const std::string& weight) const;
  std::map<std::string, std::string> first_of_group;
  std::string not_resumed;  // why the file of an interrupted run was not used; otherwise empty
};

// `model` is not compiled and runs in high precision. Where `partial` names a file, what each
// prompt gave is kept there, and a run that was interrupted goes on from it. One that belongs to
// other options or another model (told by `fingerprint`), or that is damaged, is begun anew, and
// `not_resumed` says why. The file is left for the caller to remove.
Calibration calibrate(Pipeline& model, const SchedulerConfig& scheduler,
                      const CalibrationOptions& options, const std::filesystem::path& partial,
                      const std::string& fingerprint, const ProgressFn& progress);

// The static scale of an input with this largest magnitude: FP8's, or NVFP4's global one.
float static_scale_for(const Format& format, float largest);

// The ranges by sigma and the histograms, for people and tools.
std::string calibration_json(const Calibration& calibration);

}  // namespace halftone
