#include "halftone/diffusion/schedule.h"

#include <algorithm>

#include "halftone/base/error.h"

namespace halftone {
namespace {

struct Term {
  float factor;
  const float* source;
};

// The terms that are there, with what they read.
std::vector<Term> terms_of(const Combination& factors, const SamplerState& state) {
  HT_ASSERT(factors.size() == kFirstMemory + state.memories.size());
  std::vector<Term> terms;
  for (size_t i = 0; i < factors.size(); ++i) {
    if (factors[i] == 0) continue;
    std::span<const float> source = state.latents;
    if (i == kPrediction) source = state.prediction;
    if (i == kNoise) source = state.noise;
    if (i >= kFirstMemory) source = state.memories[i - kFirstMemory];
    HT_ASSERT(source.size() == state.latents.size());
    terms.push_back({factors[i], source.data()});
  }
  return terms;
}

float sum_of(const std::vector<Term>& terms, size_t i) {
  if (terms.empty()) return 0;
  float sum = terms[0].factor * terms[0].source[i];
  for (size_t k = 1; k < terms.size(); ++k) sum += terms[k].factor * terms[k].source[i];
  return sum;
}

}  // namespace

bool Schedule::uses_noise() const {
  return std::any_of(steps.begin(), steps.end(),
                     [](const SamplerStep& step) { return step.uses_noise(); });
}

Schedule as_read(Schedule schedule) {
  if (schedule.steps.empty()) return schedule;
  schedule.initial_scale *= schedule.steps[0].input_scale;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    SamplerStep& step = schedule.steps[i];
    const double scale = step.input_scale;
    const double next = i + 1 < schedule.steps.size() ? schedule.steps[i + 1].input_scale : 1;
    const auto of_scaled = [scale](Combination& factors, double result) {
      for (float& factor : factors) factor = static_cast<float>(factor * result);
      factors[kLatents] = static_cast<float>(factors[kLatents] / scale);
    };
    of_scaled(step.latents, next);
    of_scaled(step.clean, 1);
    for (Combination& memory : step.memory) of_scaled(memory, 1);
    step.signal = static_cast<float>(step.signal * scale);
    step.noise_level = static_cast<float>(step.noise_level * scale);
  }
  for (SamplerStep& step : schedule.steps) step.input_scale = 1;
  return schedule;
}

void apply_step(const SamplerStep& step, const SamplerState& state) {
  HT_ASSERT(step.memory.size() == state.memories.size());
  const std::vector<Term> latents = terms_of(step.latents, state);
  std::vector<std::vector<Term>> memory;
  for (const Combination& factors : step.memory) memory.push_back(terms_of(factors, state));
  std::vector<float> remembered(memory.size());
  for (size_t i = 0; i < state.latents.size(); ++i) {
    for (size_t k = 0; k < memory.size(); ++k) remembered[k] = sum_of(memory[k], i);
    state.latents[i] = sum_of(latents, i);
    for (size_t k = 0; k < memory.size(); ++k) state.memories[k][i] = remembered[k];
  }
}

void combine(const Combination& factors, const SamplerState& state, std::span<float> out) {
  HT_ASSERT(out.size() == state.latents.size());
  const std::vector<Term> terms = terms_of(factors, state);
  for (size_t i = 0; i < out.size(); ++i) out[i] = sum_of(terms, i);
}

}  // namespace halftone
