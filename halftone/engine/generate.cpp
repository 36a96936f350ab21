#include "halftone/engine/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/engine/checks.h"

namespace halftone {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += seconds(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void check_finite(const Tensor& x, const char* what, const std::string& problem) {
  for (const float v : x.as<float>()) {
    if (!std::isfinite(v)) throw Error(ErrorCode::kInvalidInput, what, "{}", problem);
  }
}

// What may have spoilt latents.
std::string suspects(const AdapterChoices& used) {
  std::string adapters;
  for (const AdapterChoice& choice : used) {
    adapters += " or " + choice.adapter->lora().report().file;
  }
  return fmt::format("hold NaN or Inf: are the weights{} damaged?", adapters);
}

void check_noise_of_all(const GenerateRequest& request, const Shape& one) {
  if (!request.noise) return;
  const Shape shape{request.count, one[1], one[2], one[3]};
  if (request.noise->shape() != shape || request.noise->dtype() != DType::kF32) {
    throw Error(ErrorCode::kInvalidInput, "noise", "is {} {} instead of F32 {}",
                name_of(request.noise->dtype()), request.noise->shape(), shape);
  }
  check_finite(*request.noise, "noise", "holds NaN or Inf");
}

JobRequest job_of(const GenerateRequest& request, int64_t index) {
  JobRequest job = static_cast<const JobRequest&>(request);
  job.seed = request.seed + static_cast<uint64_t>(index);
  if (request.noise) job.noise = request.noise->rows(index, index + 1);
  return job;
}

// What a request's memory follows from.
struct Planning {
  Shape latents;
  SamplerGraph sampler;
  std::vector<std::string> prompts;
};

Planning planning_of(const Model& model, const GenerateRequest& request) {
  check_prompts(request, model.parts());
  check_skip_layers(request, model.parts());
  check_original(request, model.parts());
  Planning what;
  what.sampler.jobs = std::min(request.batch, request.count);
  what.prompts = {request.prompt};
  if (takes_two(request, model.sampling())) {
    what.sampler.rule = model.sampling().guidance_rule;
    what.prompts.push_back(request.negative.value_or(""));
  }
  what.latents = model.latent_shape(request.width, request.height);
  const Shape& latents = what.latents;
  const Schedule schedule =
      make_schedule(request.scheduler.value_or(model.sampling().scheduler), request.steps,
                    model.denoiser().image_tokens({latents[1], latents[2], latents[3]}));
  what.sampler.skip_blocks = request.skip.layers;
  what.sampler.memories = schedule.memories;
  what.sampler.noise = schedule.uses_noise();
  return what;
}

}  // namespace

ModelMemory plan_generate(Pipeline& pipeline, const GenerateRequest& request) {
  const Planning what = planning_of(pipeline.model(), request);
  return pipeline.plan(what.latents, what.sampler, what.prompts, request.adapters,
                       request.cache > 0);
}

PhaseMemory plan_generate_phases(Pipeline& pipeline, const GenerateRequest& request) {
  const Planning what = planning_of(pipeline.model(), request);
  return pipeline.plan_phases(what.latents, what.sampler, what.prompts, request.adapters,
                              request.cache > 0);
}

GeneratedPicture finish_picture(Stepper& stepper, const Job& job, int index,
                                GenerateSeconds& seconds) {
  GeneratedPicture picture{index, {}, {}, {job.reused(0), job.reused(1)}};
  {
    const Stopwatch watch(seconds.denoise);  // a device may still be at work on the steps
    picture.latents = stepper.latents(job);
  }
  check_finite(picture.latents, "latents", suspects(job.request().adapters));
  const Stopwatch watch(seconds.decode);
  const Tensor image = stepper.picture(job);
  check_finite(image, "pixels", "hold NaN or Inf: is the VAE damaged?");
  picture.image = image.reshape({image.shape()[1], image.shape()[2], image.shape()[3]});
  return picture;
}

GenerateSeconds generate(Pipeline& pipeline, const GenerateRequest& request,
                         const ProgressFn& progress, const PictureFn& finished) {
  check_noise_of_all(request, pipeline.model().latent_shape(request.width, request.height));
  GenerateSeconds seconds;
  Stepper stepper(pipeline);
  const int64_t batches = (request.count + request.batch - 1) / request.batch;
  const int64_t total = batches * request.steps;
  int64_t done = 0;
  for (int64_t begin = 0; begin < request.count; begin += request.batch) {
    const int64_t end = std::min<int64_t>(begin + request.batch, request.count);
    std::vector<Job> jobs;
    {
      const Stopwatch watch(seconds.text);
      for (int64_t i = begin; i < end; ++i) jobs.push_back(stepper.start(job_of(request, i)));
    }
    std::vector<Job*> rows;
    for (Job& job : jobs) rows.push_back(&job);
    for (int step = 0; step < request.steps; ++step) {
      progress({"denoising", done++, total});
      const Stopwatch watch(seconds.denoise);
      stepper.step(rows);
      if (done > 1) continue;
      if (DeviceContext* device = pipeline.model().options().stream.device) device->synchronize();
      seconds.first_step = watch.seconds();
    }
    for (int64_t i = begin; i < end; ++i) {
      progress({"decoding", done, total});
      const Job& job = jobs[static_cast<size_t>(i - begin)];
      finished(finish_picture(stepper, job, static_cast<int>(i), seconds));
    }
  }
  progress({"done", total, total});
  return seconds;
}

GenerateResult generate(Pipeline& pipeline, const GenerateRequest& request,
                        const ProgressFn& progress) {
  const Shape one = pipeline.model().latent_shape(request.width, request.height);
  GenerateResult result;
  result.latents = Tensor::empty(DType::kF32, {request.count, one[1], one[2], one[3]});
  auto bytes = result.latents.mutable_bytes();
  result.seconds = generate(pipeline, request, progress, [&](const GeneratedPicture& made) {
    const auto from = made.latents.bytes();
    std::memcpy(bytes.data() + made.index * from.size(), from.data(), from.size());
    result.images.push_back(made.image);
  });
  return result;
}

}  // namespace halftone
