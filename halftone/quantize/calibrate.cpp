#include "halftone/quantize/calibrate.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/threads.h"
#include "halftone/quantize/calibration_file.h"
#include "halftone/quantize/sampler_run.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

// Magnitudes of some values. Bits of magnitudes order NaN above Inf above every number.
struct Magnitudes {
  uint32_t largest = 0;
  std::array<int64_t, InputRange::kBins> histogram{};

  void add(float x) {
    const uint32_t bits = magnitude_bits(x);
    largest = std::max(largest, bits);
    const int exponent = static_cast<int>(bits >> 23) - 127;
    if (bits != 0) {
      ++histogram[std::clamp(exponent + InputRange::kLowest, 0, InputRange::kBins - 1)];
    }
  }
};

// Adds the values of x to a range, at this step.
void count(const ConstView& x, int step, int threads, InputRange& range) {
  HT_ASSERT(x.dtype == DType::kF32 || x.dtype == DType::kBF16);
  std::mutex mutex;
  constexpr int64_t kGrain = 1 << 16;
  parallel_for(threads, x.shape.numel(), kGrain, [&](int64_t begin, int64_t end) {
    Magnitudes seen;
    if (x.dtype == DType::kF32) {
      for (int64_t i = begin; i < end; ++i) seen.add(static_cast<const float*>(x.data)[i]);
    } else {
      for (int64_t i = begin; i < end; ++i) seen.add(to_float(static_cast<const bf16*>(x.data)[i]));
    }
    const std::lock_guard lock(mutex);
    float& amax = range.amax[static_cast<size_t>(step)];
    amax = bit_cast<float>(std::max(magnitude_bits(amax), seen.largest));
    for (size_t i = 0; i < seen.histogram.size(); ++i) range.histogram[i] += seen.histogram[i];
  });
}

std::vector<int> kept_steps(const CalibrationOptions& options) {
  std::vector<int> steps;
  const int points = std::min(options.points_per_prompt, options.steps);
  for (int i = 0; i < points; ++i) {
    steps.push_back(points == 1 ? options.steps / 2 : i * (options.steps - 1) / (points - 1));
  }
  return steps;
}

class Calibrator {
 public:
  Calibrator(Pipeline& model, const SchedulerConfig& scheduler, const CalibrationOptions& options,
             fs::path partial, std::string fingerprint, const ProgressFn& progress)
      : model_(model),
        options_(options),
        partial_(std::move(partial)),
        progress_(progress),
        prompts_(options.prompts) {
    if (!options.only_moments) {
      prompts_.insert(prompts_.end(), options.held_out.begin(), options.held_out.end());
    }
    stream_ = model.model().options().stream;
    stream_.threads = options.threads;
    layout_.fingerprint = std::move(fingerprint);
    layout_.prompts = static_cast<int>(prompts_.size());
    layout_.steps = options.steps;
    layout_.latents = model.model().latent_shape(options.width, options.height);
    schedule_ = schedule_for(model.model(), scheduler, options.steps, layout_.latents);
    guided_ = is_guided(model.model().sampling().rule_of_guidance(), options_.guidance);
    const int first_kept = options.held_out.empty() ? 0 : static_cast<int>(options.prompts.size());
    for (int prompt = first_kept; prompt < layout_.prompts; ++prompt) {
      for (const int step : kept_steps(options)) layout_.points.emplace_back(prompt, step);
    }
    result_.steps = schedule_.steps;
    std::map<int, std::string> first;
    for (const LinearInfo& linear : model.model().linears()) {
      const std::string& of_group = first.emplace(linear.group, linear.weight).first->second;
      result_.first_of_group[linear.weight] = of_group;
      result_.inputs[linear.weight].amax.assign(static_cast<size_t>(options.steps), 0.0f);
      layout_.inputs[linear.weight] = linear.shape[1];
      const bool wanted = !options.moments_of || options.moments_of->contains(of_group);
      if (options.moments && wanted && of_group == linear.weight) {
        layout_.moments[linear.weight] = linear.shape[1];
        moment_bytes_ += linear.shape[1] * linear.shape[1] * int64_t{sizeof(float)};
      }
    }
  }

  Calibration run() {
    const int done = resume();
    const Told told = {options_.guidance, PictureSizes::of(options_.width, options_.height)};
    for (const std::string& prompt : prompts_) {
      result_.conditions.push_back(model_.encode(prompt, told));
    }
    if (guided_) negative_ = model_.encode_negative(std::nullopt, told);
    const auto watched = static_cast<int>(options_.prompts.size());
    run_prompts(done, watched, true);
    scratch_ = {};
    if (options_.use_moments && !layout_.moments.empty()) {
      options_.use_moments(result_);
      result_.moments.clear();
      moment_bytes_ = 0;
      keep(std::max(done, watched));
    }
    run_prompts(std::max(done, watched), layout_.prompts, false);
    return std::move(result_);
  }

 private:
  // Watches as long as it lives.
  class Observing {
   public:
    explicit Observing(Calibrator& owner) : model_(owner.model_) {
      // Of linears that read the same, one tells.
      const auto wants = [&owner](const std::string& weight) {
        const auto first = owner.result_.first_of_group.find(weight);
        return first != owner.result_.first_of_group.end() && first->second == weight &&
               (!owner.options_.only_moments || owner.layout_.moments.contains(weight));
      };
      const auto see = [&owner](const std::string& weight, const ConstView& x) {
        if (!owner.options_.only_moments) {
          count(x, owner.step_, owner.options_.threads, owner.result_.inputs.at(weight));
        }
        if (owner.layout_.moments.contains(weight)) {
          owner.result_.moments[weight].add(x, owner.kernels(), owner.stream_, owner.scratch_);
        }
      };
      model_.observe_linears({see, wants});
    }
    ~Observing() { model_.observe_linears({}); }
    Observing(const Observing&) = delete;
    Observing& operator=(const Observing&) = delete;

   private:
    Pipeline& model_;
  };

  void run_prompts(int begin, int end, bool watch) {
    std::optional<Observing> observing;
    if (watch && begin < end) observing.emplace(*this);
    for (int prompt = begin; prompt < end; ++prompt) {
      run_prompt(prompt);
      // After every prompt, whether it is kept or not: where a run is interrupted changes no bit.
      for (auto& [weight, moments] : result_.moments) moments.flush(kernels(), stream_, scratch_);
      for (auto& [weight, range] : result_.inputs) {
        range = result_.inputs.at(result_.first_of_group.at(weight));
      }
      keep(prompt + 1);
    }
  }
  void keep(int done) const {
    if (partial_.empty() || moment_bytes_ > options_.most_kept) return;
    write_calibration(partial_, layout_.fingerprint, done, result_);
  }
  const Kernels& kernels() const { return *model_.model().options().kernels; }

  void run_prompt(int prompt) {
    const uint64_t seed = options_.first_seed + static_cast<uint64_t>(prompt);
    Tensor latents = seeded_noise(layout_.latents, seed);
    SamplerRun sampler(schedule_, layout_.latents, seed);
    for (step_ = 0; step_ < options_.steps; ++step_) {
      progress_({"calibrating", int64_t{prompt} * options_.steps + step_,
                 int64_t{layout_.prompts} * options_.steps});
      const SamplerStep& step = schedule_.steps[static_cast<size_t>(step_)];
      const Condition& condition = result_.conditions[prompt];
      // Points are what the denoiser says for the prompt alone.
      const Tensor v = guided_prediction(model_, latents, step, condition, negative_, 0);
      const bool kept =
          !options_.only_moments && std::find(layout_.points.begin(), layout_.points.end(),
                                              std::pair(prompt, step_)) != layout_.points.end();
      if (kept) {
        result_.points.push_back({prompt, step_, latents.clone(), v.clone()});
      }
      Tensor taken = v;
      if (guided_) {
        taken = v.clone();
        const Tensor away = guided_prediction(model_, latents, step, negative_, negative_, 0);
        guide(model_.model().sampling().rule_of_guidance(), options_.guidance,
              taken.mutable_as<float>(), away.as<float>());
      }
      latents = sampler.advance(static_cast<size_t>(step_), latents, taken);
    }
  }

  // Prompts that an interrupted run has done already.
  int resume() {
    if (partial_.empty() || !path_exists(partial_)) return 0;
    try {
      CalibrationProgress before = read_calibration(partial_, layout_);
      result_.inputs = std::move(before.inputs);
      result_.moments = std::move(before.moments);
      result_.points = std::move(before.points);
      return before.done;
    } catch (const Error& error) {
      result_.not_resumed = error.what();
      return 0;
    }
  }

  Pipeline& model_;
  const CalibrationOptions& options_;
  fs::path partial_;
  const ProgressFn& progress_;
  std::vector<std::string> prompts_;  // watched, then held out
  CalibrationLayout layout_;
  int64_t moment_bytes_ = 0;  // of those that are still needed
  Stream stream_;             // where their products run
  InputMoments::Scratch scratch_;
  Schedule schedule_;
  bool guided_ = false;
  Condition negative_;
  Calibration result_;
  int step_ = 0;
};

}  // namespace

const InputMoments* Calibration::moments_of(const std::string& weight) const {
  const auto first = first_of_group.find(weight);
  if (first == first_of_group.end()) return nullptr;
  const auto found = moments.find(first->second);
  return found == moments.end() ? nullptr : &found->second;
}

Calibration calibrate(Pipeline& model, const SchedulerConfig& scheduler,
                      const CalibrationOptions& options, const fs::path& partial,
                      const std::string& fingerprint, const ProgressFn& progress) {
  return Calibrator(model, scheduler, options, partial, fingerprint, progress).run();
}

float static_scale_for(const Format& format, float largest) {
  return format.global_scale ? nvfp4_global_scale(largest, kNvfp4MaxBlockScale)
                             : amax_scale(largest, format.element_max());
}

std::string calibration_json(const Calibration& calibration) {
  nlohmann::ordered_json json;
  for (const SamplerStep& step : calibration.steps) {
    json["sigmas"].push_back(static_cast<float>(step.sigma));
  }
  json["histogram_bins"] = {{"first_exponent", -InputRange::kLowest}, {"ratio", 2}};
  for (const auto& [weight, range] : calibration.inputs) {
    json["inputs"][weight] = {{"amax", range.amax}, {"histogram", range.histogram}};
  }
  return json.dump(1) + "\n";
}

}  // namespace halftone
