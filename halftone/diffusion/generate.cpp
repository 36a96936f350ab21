#include "halftone/diffusion/generate.h"

#include <chrono>
#include <cmath>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/base/random.h"

namespace halftone {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void check_finite(const Tensor& x, const char* what, const std::string& problem) {
  for (const float v : x.as<float>()) {
    if (!std::isfinite(v)) throw Error(ErrorCode::kInvalidInput, what, "{}", problem);
  }
}

// Latents of pictures [begin, end), row by row, so that a picture does not depend on who shares its
// batch.
Tensor initial_latents(const GenerateRequest& request, const Shape& one, int64_t begin,
                       int64_t end) {
  Tensor latents = Tensor::empty(DType::kF32, {end - begin, one[1], one[2], one[3]});
  auto bytes = latents.mutable_bytes();
  for (int64_t i = begin; i < end; ++i) {
    const Tensor noise = request.noise ? request.noise->rows(i, i + 1)
                                       : seeded_noise(one, request.seed + static_cast<uint64_t>(i));
    std::memcpy(bytes.data() + (i - begin) * noise.byte_size(), noise.bytes().data(),
                noise.bytes().size());
  }
  return latents;
}

void check_noise(const GenerateRequest& request, const Shape& one) {
  if (!request.noise) return;
  const Shape shape{request.count, one[1], one[2], one[3]};
  if (request.noise->shape() != shape || request.noise->dtype() != DType::kF32) {
    throw Error(ErrorCode::kInvalidInput, "noise", "is {} {} instead of F32 {}",
                name_of(request.noise->dtype()), request.noise->shape(), shape);
  }
  check_finite(*request.noise, "noise", "holds NaN or Inf");
}

// Latents of rows [begin, end) twice over, for the prompt and the negative prompt.
Tensor repeat(const Tensor& x) {
  const Shape& s = x.shape();
  Tensor out = Tensor::empty(x.dtype(), {2 * s[0], s[1], s[2], s[3]});
  std::memcpy(out.mutable_bytes().data(), x.bytes().data(), x.bytes().size());
  std::memcpy(out.mutable_bytes().data() + x.bytes().size(), x.bytes().data(), x.bytes().size());
  return out;
}

// What may have spoilt latents.
std::string suspects(const LoadReport& report) {
  std::string adapters;
  for (const LoraReport& lora : report.loras) adapters += " or " + lora.file;
  return fmt::format("hold NaN or Inf: are the weights{} damaged?", adapters);
}

}  // namespace

Tensor seeded_noise(const Shape& shape, uint64_t seed) {
  Tensor noise = Tensor::empty(DType::kF32, shape);
  auto values = noise.mutable_as<float>();
  for (size_t i = 0; i < values.size(); i += 2) {
    const PhiloxBlock block = philox_block({seed, 0x4E4F495345ull}, i / 2);
    const double radius = std::sqrt(-2 * std::log((block.word[0] + 0.5) * 0x1p-32));  // Box-Muller
    const double angle = 2 * M_PI * (block.word[1] + 0.5) * 0x1p-32;
    values[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < values.size()) values[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return noise;
}

ModelMemory plan_generate(DiffusionModel& model, const GenerateRequest& request) {
  std::vector<std::string> prompts = {request.prompt};
  const bool guided = request.guidance > 0;
  if (guided) prompts.push_back(request.negative);
  const int64_t rows = std::min(request.batch, request.count) * (guided ? 2 : 1);
  return model.plan(model.latent_shape(request.width, request.height), rows, prompts);
}

GenerateSeconds generate(DiffusionModel& model, const FlowMatchConfig& schedule,
                         const GenerateRequest& request, const ProgressFn& progress,
                         const PictureFn& finished) {
  const Shape one = model.latent_shape(request.width, request.height);
  check_noise(request, one);
  GenerateSeconds seconds;
  const bool guided = request.guidance > 0;
  const std::vector<float> sigmas =
      flow_match_sigmas(schedule, request.steps, model.image_tokens(one));

  Condition positive, negative;
  {
    const Stopwatch watch(seconds.text);
    positive = model.encode(request.prompt);
    if (guided) negative = model.encode(request.negative);
  }

  const int64_t batches = (request.count + request.batch - 1) / request.batch;
  const int64_t total = batches * request.steps;
  int64_t done = 0;
  for (int64_t begin = 0; begin < request.count; begin += request.batch) {
    const int64_t end = std::min<int64_t>(begin + request.batch, request.count);
    const auto rows = static_cast<size_t>(end - begin);
    Tensor latents = initial_latents(request, one, begin, end);
    std::vector<Condition> conditions(rows, positive);
    if (guided) conditions.resize(2 * rows, negative);
    for (int step = 0; step < request.steps; ++step) {
      progress({"denoising", done++, total});
      const Stopwatch watch(seconds.denoise);
      const std::vector<float> at(conditions.size(), sigmas[step]);
      Tensor velocity = model.velocity(guided ? repeat(latents) : latents, at, conditions);
      if (guided) {
        const auto count = static_cast<size_t>(latents.numel());
        auto v = velocity.mutable_as<float>();
        for (size_t i = 0; i < count; ++i) v[i] += request.guidance * (v[i] - v[count + i]);
      }
      euler_step(latents.mutable_as<float>(),
                 velocity.as<float>().first(static_cast<size_t>(latents.numel())), sigmas[step],
                 sigmas[step + 1]);
    }
    check_finite(latents, "latents", suspects(model.load_report()));
    for (int64_t i = begin; i < end; ++i) {
      progress({"decoding", done, total});
      GeneratedPicture picture{static_cast<int>(i), latents.rows(i - begin, i - begin + 1), {}};
      {
        const Stopwatch watch(seconds.decode);
        const Tensor image = model.decode(picture.latents);
        check_finite(image, "pixels", "hold NaN or Inf: is the VAE damaged?");
        picture.image = image.reshape({image.shape()[1], image.shape()[2], image.shape()[3]});
      }
      finished(picture);
    }
  }
  progress({"done", total, total});
  return seconds;
}

GenerateResult generate(DiffusionModel& model, const FlowMatchConfig& schedule,
                        const GenerateRequest& request, const ProgressFn& progress) {
  const Shape one = model.latent_shape(request.width, request.height);
  GenerateResult result;
  result.latents = Tensor::empty(DType::kF32, {request.count, one[1], one[2], one[3]});
  auto bytes = result.latents.mutable_bytes();
  result.seconds = generate(model, schedule, request, progress, [&](const GeneratedPicture& made) {
    const auto from = made.latents.bytes();
    std::memcpy(bytes.data() + made.index * from.size(), from.data(), from.size());
    result.images.push_back(made.image);
  });
  return result;
}

}  // namespace halftone
