#include "halftone/quantize/calibrate.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/quantize/calibration_file.h"
#include "halftone/quantize/sampler_run.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

// Adds the values of x to a range.
class RangeCounter {
 public:
  RangeCounter(InputRange& range, int step) : range_(range), step_(step) {}

  void count(const ConstView& x) {
    const int64_t n = x.shape.numel();
    if (x.dtype == DType::kF32) {
      for (int64_t i = 0; i < n; ++i) add(static_cast<const float*>(x.data)[i]);
    } else {
      HT_ASSERT(x.dtype == DType::kBF16);
      for (int64_t i = 0; i < n; ++i) add(to_float(static_cast<const bf16*>(x.data)[i]));
    }
    // Bits of magnitudes order NaN above Inf above every number.
    const auto before = magnitude_bits(range_.amax[step_]);
    range_.amax[step_] = bit_cast<float>(std::max(before, largest_));
  }

 private:
  void add(float x) {
    const uint32_t bits = magnitude_bits(x);
    largest_ = std::max(largest_, bits);
    const int exponent = static_cast<int>(bits >> 23) - 127;
    if (bits != 0) {
      ++range_.histogram[std::clamp(exponent + InputRange::kLowest, 0, InputRange::kBins - 1)];
    }
  }

  InputRange& range_;
  int step_;
  uint32_t largest_ = 0;
};

Tensor copy_of(const Tensor& x) {
  Tensor y = Tensor::empty(x.dtype(), x.shape());
  std::copy(x.bytes().begin(), x.bytes().end(), y.mutable_bytes().begin());
  return y;
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
    prompts_.insert(prompts_.end(), options.held_out.begin(), options.held_out.end());
    layout_.fingerprint = std::move(fingerprint);
    layout_.prompts = static_cast<int>(prompts_.size());
    layout_.steps = options.steps;
    layout_.latents = model.model().latent_shape(options.width, options.height);
    schedule_ = schedule_for(model.model(), scheduler, options.steps, layout_.latents);
    guided_ = is_guided(model.model().sampling().guidance_rule, options.guidance);
    const int first_kept = options.held_out.empty() ? 0 : static_cast<int>(options.prompts.size());
    for (int prompt = first_kept; prompt < layout_.prompts; ++prompt) {
      for (const int step : kept_steps(options)) layout_.points.emplace_back(prompt, step);
    }
    for (const SamplerStep& step : schedule_.steps) {
      result_.sigmas.push_back(static_cast<float>(step.sigma));
    }
    result_.sigmas.push_back(0);
    std::map<int, std::string> first;
    for (const LinearInfo& linear : model.model().linears()) {
      const std::string& of_group = first.emplace(linear.group, linear.weight).first->second;
      result_.first_of_group[linear.weight] = of_group;
      result_.inputs[linear.weight].amax.assign(static_cast<size_t>(options.steps), 0.0f);
      layout_.inputs[linear.weight] = linear.shape[1];
      if (options.moments && of_group == linear.weight) {
        layout_.moments[linear.weight] = linear.shape[1];
      }
    }
  }

  Calibration run() {
    const int done = resume();
    for (const std::string& prompt : prompts_) result_.conditions.push_back(model_.encode(prompt));
    if (guided_) negative_ = model_.encode("");
    run_prompts(done, static_cast<int>(options_.prompts.size()), true);
    run_prompts(std::max(done, static_cast<int>(options_.prompts.size())), layout_.prompts, false);
    return std::move(result_);
  }

 private:
  // Watches as long as it lives.
  class Observing {
   public:
    explicit Observing(Calibrator& owner) : model_(owner.model_) {
      model_.observe_linears([&owner](const std::string& weight, const ConstView& x) {
        const auto found = owner.result_.inputs.find(weight);
        if (found == owner.result_.inputs.end()) return;
        RangeCounter(found->second, owner.step_).count(x);
        if (owner.layout_.moments.contains(weight)) {
          owner.result_.moments[weight].add(x, cpu_kernels(), {owner.options_.threads});
        }
      });
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
      if (!partial_.empty()) {
        write_calibration(partial_, layout_.fingerprint, prompt + 1, result_);
      }
    }
  }

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
      if (std::find(layout_.points.begin(), layout_.points.end(), std::pair(prompt, step_)) !=
          layout_.points.end()) {
        result_.points.push_back({prompt, step_, copy_of(latents), copy_of(v)});
      }
      Tensor taken = v;
      if (guided_) {
        taken = copy_of(v);
        const Tensor away = guided_prediction(model_, latents, step, negative_, negative_, 0);
        guide(model_.model().sampling().guidance_rule, options_.guidance, taken.mutable_as<float>(),
              away.as<float>());
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
  json["sigmas"] = std::vector<float>(calibration.sigmas.begin(), calibration.sigmas.end() - 1);
  json["histogram_bins"] = {{"first_exponent", -InputRange::kLowest}, {"ratio", 2}};
  for (const auto& [weight, range] : calibration.inputs) {
    json["inputs"][weight] = {{"amax", range.amax}, {"histogram", range.histogram}};
  }
  return json.dump(1) + "\n";
}

}  // namespace halftone
