#include "halftone/quantize/parity.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/quantize/metrics.h"
#include "halftone/quantize/sampler_run.h"

namespace halftone {
namespace {

// x with Gaussian noise of this much of its own size.
Tensor disturbed(const Tensor& x, double amount, uint64_t seed) {
  if (amount == 0) return x;
  double squares = 0;
  for (const float v : x.as<float>()) squares += double{v} * v;
  const double size = std::sqrt(squares / static_cast<double>(x.numel()));
  const Tensor noise = seeded_noise(x.shape(), seed);
  Tensor y = x.clone();
  for (int64_t i = 0; i < y.numel(); ++i) {
    y.mutable_as<float>()[i] += static_cast<float>(amount * size) * noise.as<float>()[i];
  }
  return y;
}

// Runs a model's predictions and counts them.
class Predictor {
 public:
  Predictor(Pipeline& model, const ParityOptions& options, int64_t total,
            const ProgressFn& progress)
      : model_(model), options_(options), total_(total), progress_(progress) {}

  // As the sampler takes it.
  Tensor velocity(const Tensor& latents, const SamplerStep& step, const Condition& positive,
                  const Condition& negative, RunCaches* caches = nullptr) {
    progress_({"comparing", done_++, total_});
    const auto start = std::chrono::steady_clock::now();
    Tensor v =
        guided_prediction(model_, latents, step, positive, negative, options_.guidance, caches);
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++count_;
    return v;
  }

  Tensor picture(const Tensor& latents) {
    const Tensor image = model_.decode(latents);
    return image.reshape({image.shape()[1], image.shape()[2], image.shape()[3]});
  }

  // The first prediction builds and warms up what the others use.
  void forget_time() { seconds_ = 0, count_ = 0; }
  double seconds_each() const { return count_ == 0 ? 0 : seconds_ / static_cast<double>(count_); }

 private:
  Pipeline& model_;
  const ParityOptions& options_;
  int64_t total_, done_ = 0, count_ = 0;
  const ProgressFn& progress_;
  double seconds_ = 0;
};

// Where a prediction alone would lead: the next latents, or, of samplers that remember earlier
// predictions, the picture that this one amounts to.
Tensor stepped(const SamplerStep& step, const Tensor& latents, const Tensor& velocity) {
  Tensor moved = latents.clone();
  const bool remembers = !step.memory.empty();
  combine(remembers ? step.clean : step.latents,
          {moved.mutable_as<float>(), velocity.as<float>(), {}, {}}, moved.mutable_as<float>());
  return moved;
}

Told told_by(const ParityOptions& options) {
  return {options.guidance, PictureSizes::of(options.width, options.height)};
}

double cosine_of(const Tensor& a, const Tensor& b) { return cosine(a.as<float>(), b.as<float>()); }

using Table = std::vector<std::vector<double>>;  // by step, then by case

std::vector<Spread> spreads(const Table& table, Spread::Worse worse) {
  std::vector<Spread> result;
  for (const auto& values : table) result.push_back(Spread::of(values, worse));
  return result;
}

Spread spread_of_all(const Table& table, Spread::Worse worse) {
  std::vector<double> all;
  for (const auto& values : table) all.insert(all.end(), values.begin(), values.end());
  return Spread::of(std::move(all), worse);
}

// Text states and latents of one go into the other.
void check_comparable(const ReferenceRun& reference, const Model& model) {
  const auto fail = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidInput, "precision", "is a folder of another model: {}", why);
  };
  if (reference.family != model.family().name) {
    fail(fmt::format("{} beside {}", model.family().name, reference.family));
  }
  if (reference.cases.empty()) return;
  const ReferenceCase& first = reference.cases.front();
  const int64_t features = first.positive.at("text").shape()[-1];
  if (features != model.denoiser().text_features()) {
    fail(fmt::format("text states of {} beside {}", model.denoiser().text_features(), features));
  }
  for (const auto& [name, width] : model.denoiser().vectors()) {
    const int64_t had = first.positive.at(name).numel();
    if (had != width) fail(fmt::format("a vector '{}' of {} beside {}", name, width, had));
  }
  if (first.latents.front().shape()[1] != model.denoiser().channels()) {
    fail(fmt::format("latents of {} channels beside {}", model.denoiser().channels(),
                     first.latents.front().shape()[1]));
  }
}

using Texts = std::map<std::string, std::vector<NamedTensors>>;  // by prompt

std::vector<TextParity> compared_texts(const ReferenceRun& reference, const Texts& own,
                                       const Conditioner& conditioner) {
  std::vector<TextPair> pairs;
  for (const auto& [prompt, results] : own) {
    pairs.push_back({&reference.texts.at(prompt), &results, read_tokens(conditioner, prompt)});
  }
  return text_parity(conditioner.folders(), pairs);
}

}  // namespace

int64_t reference_predictions(const ParityOptions& options) {
  return static_cast<int64_t>(options.prompts.size()) * options.seeds * options.steps;
}
int64_t compared_predictions(const ParityOptions& options) {
  return 2 * reference_predictions(options);
}

ReferenceRun run_reference(Pipeline& model, const SchedulerConfig& scheduler,
                           const ParityOptions& options, const ProgressFn& progress) {
  const Shape shape = model.model().latent_shape(options.width, options.height);
  ReferenceRun run;
  run.family = model.model().family().name;
  run.schedule = schedule_for(model.model(), scheduler, options.steps, shape);
  for (const SamplerStep& step : run.schedule.steps) {
    run.sigmas.push_back(static_cast<float>(step.sigma));
  }
  run.sigmas.push_back(0);
  Predictor predictor(model, options, reference_predictions(options), progress);
  const bool guided = is_guided(model.model().sampling().rule_of_guidance(), options.guidance);
  const Told told = told_by(options);
  const Condition negative = guided ? model.encode_negative(std::nullopt, told) : Condition{};
  for (const std::string& prompt : options.prompts) {
    run.texts[prompt] = model.encoder_results(prompt);
    const Condition positive = model.encode(prompt, told);
    for (int s = 0; s < options.seeds; ++s) {
      ReferenceCase c{
          prompt, options.first_seed + static_cast<uint64_t>(s), positive, negative, {}, {}, {},
          {}};
      c.latents.push_back(seeded_noise(shape, c.seed));
      SamplerRun sampler(run.schedule, shape, c.seed);
      for (size_t k = 0; k < run.schedule.steps.size(); ++k) {
        c.velocities.push_back(
            predictor.velocity(c.latents.back(), run.schedule.steps[k], positive, negative));
        if (run.cases.empty() && k == 0) predictor.forget_time();
        c.latents.push_back(sampler.advance(k, c.latents.back(), c.velocities.back()));
      }
      if (static_cast<int>(run.cases.size()) < options.layer_cases) {
        const int middle = options.steps / 2;
        c.blocks = model.block_outputs(c.latents[middle], run.schedule.steps[middle], positive);
      }
      c.image = predictor.picture(c.latents.back());
      run.cases.push_back(std::move(c));
    }
  }
  run.seconds_per_step = predictor.seconds_each();
  return run;
}

ParityResult compare_with(const ReferenceRun& reference, Pipeline& model,
                          const ParityOptions& options, const Variation& variation,
                          const ProgressFn& progress) {
  const double disturbance = variation.disturbance;
  check_comparable(reference, model.model());
  const auto steps = reference.schedule.steps.size();
  const bool guided = is_guided(model.model().sampling().rule_of_guidance(), options.guidance);
  ParityResult result;
  result.cache = variation.cache;
  Predictor predictor(model, options, compared_predictions(options), progress);
  const Told told = told_by(options);
  Table cosines(steps), errors(steps), step_cosines(steps), rollout(steps);
  std::vector<double> ssims, psnrs;
  int layer_cases = 0;
  bool first = true;
  Texts texts;
  for (const auto& [prompt, results] : reference.texts) {
    if (disturbance == 0) texts[prompt] = model.encoder_results(prompt);
  }
  result.texts = compared_texts(reference, texts, model.model().conditioner());
  for (const ReferenceCase& c : reference.cases) {
    ParityResult::Case own{c.prompt, c.seed, 1, 0, 0, 0, {}, {}};
    // One along the reference's run, and one along its own.
    RunCaches beside(variation.cache, steps), caches(variation.cache, steps);
    const bool cached = variation.cache > 0;
    // Its own text states in whole runs; in single predictions the reference's, so that these
    // compare denoisers.
    const Condition positive = model.encode(c.prompt, told);
    const Condition negative = guided ? model.encode_negative(std::nullopt, told) : Condition{};
    Tensor latents = disturbed(c.latents[0], disturbance, c.seed + 1);
    SamplerRun sampler(reference.schedule, latents.shape(), c.seed);
    for (size_t k = 0; k < steps; ++k) {
      const SamplerStep& step = reference.schedule.steps[k];
      beside.begin(k);
      caches.begin(k);
      if (variation.single_steps) {
        const Tensor v =
            predictor.velocity(disturbed(c.latents[k], disturbance, c.seed + 2 + k), step,
                               c.positive, c.negative, cached ? &beside : nullptr);
        if (std::exchange(first, false)) predictor.forget_time();
        cosines[k].push_back(cosine_of(v, c.velocities[k]));
        errors[k].push_back(relative_difference(v.as<float>(), c.velocities[k].as<float>()));
        step_cosines[k].push_back(cosine_of(stepped(step, c.latents[k], v),
                                            stepped(step, c.latents[k], c.velocities[k])));
        own.velocity_cosine = std::min(own.velocity_cosine, cosines[k].back());
      }
      latents = sampler.advance(
          k, latents,
          predictor.velocity(latents, step, positive, negative, cached ? &caches : nullptr));
      if (caches.prompt.reused) own.reused.push_back(static_cast<int>(k + 1));
      rollout[k].push_back(cosine_of(latents, c.latents[k + 1]));
    }
    result.reused_share += static_cast<double>(own.reused.size()) /
                           static_cast<double>(steps * reference.cases.size());
    own.latent_cosine = rollout[steps - 1].back();
    own.image = predictor.picture(latents);
    own.ssim = ssim(own.image, c.image);
    own.psnr = psnr(own.image, c.image);
    ssims.push_back(own.ssim);
    psnrs.push_back(own.psnr);
    if (!c.blocks.empty()) {
      const size_t middle = steps / 2;
      const Tensor input = disturbed(c.latents[middle], disturbance, c.seed + 1);
      const auto blocks = model.block_outputs(input, reference.schedule.steps[middle], c.positive);
      result.layer_error.resize(blocks.size());
      for (size_t i = 0; i < blocks.size(); ++i) {
        HT_ASSERT(blocks[i].first == c.blocks[i].first);
        result.layer_error[i].first = blocks[i].first;
        result.layer_error[i].second +=
            relative_difference(blocks[i].second.as<float>(), c.blocks[i].second.as<float>());
      }
      ++layer_cases;
    }
    result.cases.push_back(std::move(own));
  }
  using Worse = Spread::Worse;
  result.velocity_cosine = spreads(cosines, Worse::kSmaller);
  result.velocity_error = spreads(errors, Worse::kLarger);
  result.step_cosine = spreads(step_cosines, Worse::kSmaller);
  result.rollout_cosine = spreads(rollout, Worse::kSmaller);
  result.velocity_cosine_all = spread_of_all(cosines, Worse::kSmaller);
  result.velocity_error_all = spread_of_all(errors, Worse::kLarger);
  result.ssim = Spread::of(std::move(ssims), Worse::kSmaller);
  result.psnr = Spread::of(std::move(psnrs), Worse::kSmaller);
  for (auto& [name, error] : result.layer_error) error /= layer_cases;
  result.seconds_per_step = predictor.seconds_each();
  return result;
}

Certificate certificate_of(const ParityResult& result, const ParityOptions& options) {
  Certificate c;
  c.precision = result.name;
  c.pictures = static_cast<int>(result.cases.size());
  c.steps = options.steps;
  c.prompts = static_cast<int>(options.prompts.size());
  c.velocity_cosine = result.velocity_cosine_all;
  c.velocity_error = result.velocity_error_all.mean;
  c.ssim = result.ssim;
  return c;
}

}  // namespace halftone
