// A sampler in the CPU's memory, step by step, for whoever looks at predictions on the way.
#pragma once

#include <vector>

#include "halftone/engine/job.h"

namespace halftone {

class SamplerRun {
 public:
  SamplerRun(const Schedule& schedule, const Shape& latents, uint64_t seed)
      : schedule_(schedule), seed_(seed) {
    for (size_t i = 0; i < schedule.memories; ++i) {
      memories_.push_back(Tensor::zeros(DType::kF32, latents));
    }
  }

  // Latents after step k, from this prediction: the steps in order.
  Tensor advance(size_t k, const Tensor& latents, const Tensor& prediction) {
    Tensor next = Tensor::empty(DType::kF32, latents.shape());
    std::copy(latents.bytes().begin(), latents.bytes().end(), next.mutable_bytes().begin());
    Tensor noise;
    if (schedule_.steps[k].uses_noise()) noise = seeded_noise(latents.shape(), seed_, k + 1);
    std::vector<std::span<float>> memories;
    for (Tensor& memory : memories_) memories.push_back(memory.mutable_as<float>());
    apply_step(schedule_.steps[k],
               {next.mutable_as<float>(), prediction.as<float>(),
                noise.defined() ? noise.as<float>() : std::span<const float>(), memories});
    return next;
  }

 private:
  const Schedule& schedule_;
  uint64_t seed_;
  std::vector<Tensor> memories_;
};

// The schedule of a run of this size.
inline Schedule schedule_for(const Model& model, const SchedulerConfig& scheduler, int steps,
                             const Shape& latents) {
  return as_read(make_schedule(
      scheduler, steps, model.denoiser().image_tokens({latents[1], latents[2], latents[3]})));
}

// Of a run whose steps reuse what resembles the one before: of the prompt's row and the negative's.
struct RunCaches {
  RunCaches(float threshold, size_t steps) : steps_(steps) {
    prompt.threshold = negative.threshold = threshold;
  }
  // Before each step: the last one is computed as a whole.
  void begin(size_t step) { prompt.whole = negative.whole = step + 1 == steps_; }

  RowCache prompt, negative;

 private:
  size_t steps_;
};

// As the sampler takes it, guidance included; a guidance that is off reads no negative.
inline Tensor guided_prediction(Pipeline& pipeline, const Tensor& latents, const SamplerStep& step,
                                const Condition& positive, const Condition& negative,
                                float guidance, RunCaches* caches = nullptr) {
  const auto cache = [&](RowCache RunCaches::* row) {
    return caches == nullptr ? nullptr : &(caches->*row);
  };
  Tensor prediction = pipeline.predict(latents, step, positive, cache(&RunCaches::prompt));
  const GuidanceRule rule = pipeline.model().sampling().rule_of_guidance();
  if (is_guided(rule, guidance)) {
    const Tensor away = pipeline.predict(latents, step, negative, cache(&RunCaches::negative));
    guide(rule, guidance, prediction.mutable_as<float>(), away.as<float>());
  }
  return prediction;
}

}  // namespace halftone
