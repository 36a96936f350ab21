// One picture in the making: a request, and how far it has come. A Pipeline steps several at once.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "halftone/engine/original_picture.h"
#include "halftone/engine/pipeline.h"
#include "halftone/engine/skip_layers.h"

namespace halftone {

struct JobRequest {
  std::string prompt;
  std::optional<std::string> negative;  // none is given, which is not always the empty prompt
  int64_t width = 1024, height = 1024;
  int steps = 8;
  float guidance = 0;  // what it means, and where it is off, is the family's guidance rule
  float true_cfg = 0;  // the same of families whose networks read `guidance` themselves
  SkipLayers skip;     // beside two predictions, a third
  OriginalPicture original;
  uint64_t seed = 0;
  std::optional<SchedulerConfig> scheduler;  // none: the model's own
  AdapterChoices adapters;
  float cache = 0;              // RowCache's threshold; 0: every step runs all blocks
  std::optional<Tensor> noise;  // F32 [1, C, h, w] instead of the seed's
};

class Job {
 public:
  int step() const { return step_; }  // that comes next
  int steps() const { return static_cast<int>(schedule_.steps.size()); }
  bool done() const { return step_ == steps(); }
  bool is_guided() const { return guided_; }
  // Steps so far at which the blocks did not run, counted from 1: with the prompt and, where it is
  // guided, with the negative one.
  const std::vector<int>& reused(size_t row = 0) const { return reused_[row]; }
  // Blocks that the next step predicts without, besides.
  std::set<int64_t> skipped() const {
    return request_.skip.at(step_, steps()) ? request_.skip.layers : std::set<int64_t>{};
  }
  const Shape& latent_shape() const { return latents_.shape(); }
  const JobRequest& request() const { return request_; }

 private:
  friend class Stepper;
  JobRequest request_;
  Schedule schedule_;
  Condition positive_, negative_;
  bool guided_ = false;
  float strength_ = 0;  // of two predictions
  // As they are padded. Sums over more of them are formed in another order, and would have other
  // bits.
  std::vector<int64_t> text_tokens_;
  std::array<RowCache, 2> caches_;  // of the prompt and the negative one
  std::array<std::vector<int>, 2> reused_;
  int step_ = 0;
  Tensor latents_;                // where the model runs
  std::vector<Tensor> memories_;  // of the sampler, there too
};

// Steps jobs on a Pipeline.
class Stepper {
 public:
  explicit Stepper(Pipeline& pipeline) : pipeline_(pipeline) {}

  Job start(const JobRequest& request);
  // One step of each: jobs at different steps, with different prompts and adapters, share a
  // forward where latents and texts are of one length; each has the bits of a run of its own.
  void step(std::span<Job* const> jobs);
  Tensor latents(const Job& job) const;  // F32 [1, C, h, w], in the CPU's memory
  Tensor picture(const Job& job);        // F32 [1, 3, H, W], of the latents as they are
  // The same of the picture that the last step was heading for, `before` being the latents that it
  // started from: what a run will come to, seen early. Samplers that remember or add noise do not
  // tell what was predicted, and then it is that of the latents.
  Tensor preview(const Job& job, const Tensor& before);

 private:
  void step_alike(std::span<Job* const> jobs);
  static bool can_share(const Job& a, const Job& b);  // a forward

  Pipeline& pipeline_;
};

// The strength by which two predictions become one, where it is on.
float strength_of_two(const JobRequest& request, const Sampling& sampling);
inline bool takes_two(const JobRequest& request, const Sampling& sampling) {
  return is_guided(sampling.guidance_rule, strength_of_two(request, sampling));
}

// What its network is told besides its prompts.
Told told_by(const JobRequest& request);

// Gaussian noise, a function of the seed alone; that of a step of a stochastic sampler is of the
// step, too.
Tensor seeded_noise(const Shape& shape, uint64_t seed, uint64_t step = 0);

}  // namespace halftone
