#include "halftone/engine/job.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/base/gaussian.h"
#include "halftone/engine/checks.h"

namespace halftone {
namespace {

// That of a step of a stochastic sampler; the first latents are step 0.
PhiloxKey noise_key(uint64_t seed, uint64_t step) { return {seed, 0x4E4F495345ull + step}; }

void check_noise(const Tensor& noise, const Shape& latents) {
  if (noise.shape() != latents || noise.dtype() != DType::kF32) {
    throw Error(ErrorCode::kInvalidInput, "noise", "is {} {} instead of F32 {}",
                name_of(noise.dtype()), noise.shape(), latents);
  }
  for (const float v : noise.as<float>()) {
    if (!std::isfinite(v)) throw Error(ErrorCode::kInvalidInput, "noise", "holds NaN or Inf");
  }
}

}  // namespace

Tensor seeded_noise(const Shape& shape, uint64_t seed, uint64_t step) {
  Tensor noise = Tensor::empty(DType::kF32, shape);
  auto values = noise.mutable_as<float>();
  for (size_t i = 0; i < values.size(); i += 2) {
    const GaussianPair two = gaussian_pair(noise_key(seed, step), i / 2);
    values[i] = two.first;
    if (i + 1 < values.size()) values[i + 1] = two.second;
  }
  return noise;
}

float strength_of_two(const JobRequest& request, const Sampling& sampling) {
  return sampling.embedded_guidance ? request.true_cfg : request.guidance;
}

Told told_by(const JobRequest& request) {
  const OriginalPicture& original = request.original;
  PictureSizes sizes = PictureSizes::of(request.width, request.height);
  if (original.width > 0) sizes.original_width = original.width;
  if (original.height > 0) sizes.original_height = original.height;
  sizes.left = original.left;
  sizes.top = original.top;
  return {request.guidance, sizes};
}

Job Stepper::start(const JobRequest& request) {
  const Model& model = pipeline_.model();
  const Sampling& sampling = model.sampling();
  const Shape shape = model.latent_shape(request.width, request.height);
  Job job;
  job.request_ = request;
  job.schedule_ =
      as_read(make_schedule(request.scheduler.value_or(sampling.scheduler), request.steps,
                            model.denoiser().image_tokens({shape[1], shape[2], shape[3]})));
  if (request.noise) check_noise(*request.noise, shape);
  for (const AdapterChoice& choice : request.adapters) {
    choice.adapter->lora().check_strength(choice.strength);
  }
  check_prompts(request, model.parts());
  check_skip_layers(request, model.parts());
  check_original(request, model.parts());
  job.guided_ = takes_two(request, sampling);
  job.strength_ = strength_of_two(request, sampling);
  const Told told = told_by(request);
  job.positive_ = pipeline_.encode(request.prompt, told, request.adapters);
  if (job.guided_) {
    job.negative_ = pipeline_.encode_negative(request.negative, told, request.adapters);
  }
  for (const Condition* condition : {&job.positive_, &job.negative_}) {
    if (condition->empty()) continue;
    const int64_t tokens = condition->at("text").shape()[0];
    const Shape one{shape[1], shape[2], shape[3]};
    job.text_tokens_.push_back(model.denoiser().shape(one, {&tokens, 1}).text_tokens);
  }
  Tensor noise = seeded_noise(shape, request.seed);
  if (request.noise) {
    std::memcpy(noise.mutable_bytes().data(), request.noise->bytes().data(),
                noise.mutable_bytes().size());
  }
  if (job.schedule_.initial_scale != 1) {
    for (float& v : noise.mutable_as<float>()) v *= job.schedule_.initial_scale;
  }
  job.latents_ = pipeline_.place(noise);
  for (size_t i = 0; i < job.schedule_.memories; ++i) {
    job.memories_.push_back(pipeline_.place(Tensor::zeros(DType::kF32, shape)));
  }
  return job;
}

void Stepper::step(std::span<Job* const> jobs) {
  // Those that can share a forward do.
  std::vector<Job*> open(jobs.begin(), jobs.end());
  for (const Job* job : open) HT_ASSERT(!job->done());
  while (!open.empty()) {
    std::vector<Job*> alike, others;
    for (Job* job : open) (can_share(*open[0], *job) ? alike : others).push_back(job);
    step_alike(alike);
    open = std::move(others);
  }
}

bool Stepper::can_share(const Job& a, const Job& b) {
  return a.latent_shape() == b.latent_shape() && a.guided_ == b.guided_ &&
         a.text_tokens_ == b.text_tokens_ && a.skipped() == b.skipped() &&
         a.memories_.size() == b.memories_.size() &&
         a.schedule_.uses_noise() == b.schedule_.uses_noise() &&
         (a.request_.cache > 0) == (b.request_.cache > 0);
}

void Stepper::step_alike(std::span<Job* const> jobs) {
  const Model& model = pipeline_.model();
  const Job& first = *jobs[0];
  const auto count = static_cast<int64_t>(jobs.size());
  SamplerGraph sampler;
  sampler.jobs = count;
  if (first.guided_) sampler.rule = model.sampling().guidance_rule;
  sampler.skip_blocks = first.skipped();
  sampler.memories = first.memories_.size();
  sampler.noise = first.schedule_.uses_noise();

  std::vector<const Condition*> conditions;
  std::vector<const AdapterChoices*> adapters;
  std::vector<float> times;
  std::vector<Tensor> latents;
  std::vector<RowCache*> caches;
  const auto add = [&](Job& job, const Condition& condition, size_t row) {
    conditions.push_back(&condition);
    adapters.push_back(&job.request_.adapters);
    times.push_back(model.denoiser().time(job.schedule_.steps[job.step_]));
    latents.push_back(job.latents_);
    if (job.request_.cache <= 0) return;
    RowCache& cache = job.caches_[row];
    cache.threshold = job.request_.cache;
    cache.whole = job.step_ + 1 == job.steps();  // what is left of noise is seen
    caches.push_back(&cache);
  };
  for (Job* job : jobs) add(*job, job->positive_, 0);
  if (first.guided_) {
    for (Job* job : jobs) add(*job, job->negative_, 1);
  }

  const size_t memories = sampler.memories, width = kFirstMemory + memories;
  Tensor factors = Tensor::zeros(
      DType::kF32, {static_cast<int64_t>(1 + memories), count, static_cast<int64_t>(width)});
  Tensor guidance = Tensor::empty(DType::kF32, {count});
  Tensor skip_scale = Tensor::empty(DType::kF32, {count});
  Tensor keys = Tensor::empty(DType::kI32, {count, 4});
  for (size_t j = 0; j < jobs.size(); ++j) {
    const SamplerStep& step = jobs[j]->schedule_.steps[jobs[j]->step_];
    guidance.mutable_as<float>()[j] = jobs[j]->strength_;
    skip_scale.mutable_as<float>()[j] = jobs[j]->request_.skip.scale;
    put_key(noise_key(jobs[j]->request_.seed, static_cast<uint64_t>(jobs[j]->step_) + 1),
            keys.mutable_as<int32_t>().subspan(4 * j, 4));
    for (size_t r = 0; r <= memories; ++r) {
      const Combination& from = r == 0 ? step.latents : step.memory[r - 1];
      std::copy(from.begin(), from.end(),
                factors.mutable_as<float>().begin() +
                    static_cast<std::ptrdiff_t>((r * jobs.size() + j) * width));
    }
  }
  pipeline_.run_step(
      sampler, {conditions, adapters, caches}, times, latents,
      [&](Program& program) {
        program.set_input("factors", factors);
        if (first.guided_) program.set_input("guidance", guidance);
        if (!sampler.skip_blocks.empty()) program.set_input("skip_scale", skip_scale);
        if (sampler.noise) program.set_input("noise_keys", keys);
        for (size_t j = 0; j < jobs.size(); ++j) {
          const Job& job = *jobs[j];
          const auto row = static_cast<int64_t>(j);
          for (size_t m = 0; m < memories; ++m) {
            program.set_input_rows(memory_name(m), row, job.memories_[m]);
          }
        }
      },
      [&](const Program& program) {
        for (size_t j = 0; j < jobs.size(); ++j) {
          const auto row = static_cast<int64_t>(j);
          program.copy_output_rows("next", row, jobs[j]->latents_);
          for (size_t m = 0; m < memories; ++m) {
            program.copy_output_rows(next_memory_name(m), row, jobs[j]->memories_[m]);
          }
        }
      });
  for (Job* job : jobs) {
    ++job->step_;
    for (size_t row = 0; row < job->caches_.size(); ++row) {
      if (job->caches_[row].reused) job->reused_[row].push_back(job->step_);
    }
  }
}

Tensor Stepper::latents(const Job& job) const { return pipeline_.fetch(job.latents_); }

Tensor Stepper::picture(const Job& job) { return pipeline_.decode(job.latents_); }

Tensor Stepper::preview(const Job& job, const Tensor& before) {
  HT_ASSERT(job.step_ > 0);
  const SamplerStep& step = job.schedule_.steps[job.step_ - 1];
  const float kept = step.latents[kLatents], taken = step.latents[kPrediction];
  if (!job.memories_.empty() || step.uses_noise() || taken == 0) return picture(job);
  // latents = kept * before + taken * prediction, and so is the clean picture, with other factors.
  const float of_latents = step.clean[kPrediction] / taken;
  const float of_before = step.clean[kLatents] - of_latents * kept;
  Tensor clean = latents(job);
  auto values = clean.mutable_as<float>();
  const auto from = before.as<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = of_latents * values[i] + of_before * from[i];
  }
  return pipeline_.decode(pipeline_.place(clean));
}

}  // namespace halftone
