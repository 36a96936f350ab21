#include "halftone/quantize/calibrate.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/numerics/bf16.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFingerprint = "halftone.calibration";
constexpr const char* kDone = "halftone.prompts";

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
  Calibrator(DiffusionModel& model, const FlowMatchConfig& schedule,
             const CalibrationOptions& options, fs::path partial, std::string fingerprint,
             const ProgressFn& progress)
      : model_(model),
        options_(options),
        partial_(std::move(partial)),
        fingerprint_(std::move(fingerprint)),
        progress_(progress),
        shape_(model.latent_shape(options.width, options.height)) {
    result_.sigmas = flow_match_sigmas(schedule, options.steps, model.image_tokens(shape_));
    std::map<int, std::string> first;
    for (const LinearInfo& linear : model.linears()) {
      result_.first_of_group[linear.weight] =
          first.emplace(linear.group, linear.weight).first->second;
      result_.inputs[linear.weight].amax.assign(static_cast<size_t>(options.steps), 0.0f);
    }
  }

  Calibration run() {
    const auto prompts = static_cast<int>(options_.prompts.size());
    const int done = resume();
    for (const std::string& prompt : options_.prompts) {
      result_.conditions.push_back(model_.encode(prompt));
    }
    const Observing observing(*this);
    for (int i = done; i < prompts; ++i) {
      run_prompt(i);
      if (!partial_.empty()) save(i + 1);
    }
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
        if (owner.options_.moments && owner.result_.first_of_group.at(weight) == weight) {
          owner.result_.moments[weight].add(x, cpu_kernels(), {owner.options_.threads});
        }
      });
    }
    ~Observing() { model_.observe_linears({}); }
    Observing(const Observing&) = delete;
    Observing& operator=(const Observing&) = delete;

   private:
    DiffusionModel& model_;
  };

  void run_prompt(int prompt) {
    const std::vector<int> kept = kept_steps(options_);
    Tensor latents = seeded_noise(shape_, options_.first_seed + static_cast<uint64_t>(prompt));
    for (step_ = 0; step_ < options_.steps; ++step_) {
      progress_({"calibrating", int64_t{prompt} * options_.steps + step_,
                 static_cast<int64_t>(options_.prompts.size()) * options_.steps});
      const float sigmas[] = {result_.sigmas[step_]};
      const Tensor v = model_.velocity(latents, sigmas, {&result_.conditions[prompt], 1});
      if (std::find(kept.begin(), kept.end(), step_) != kept.end()) {
        result_.points.push_back({prompt, step_, copy_of(latents), copy_of(v)});
      }
      euler_step(latents.mutable_as<float>(), v.as<float>(), result_.sigmas[step_],
                 result_.sigmas[step_ + 1]);
    }
  }

  static std::string point_name(const CalibrationPoint& p, const char* what) {
    return fmt::format("{}.{}.{}", what, p.prompt, p.step);
  }

  void save(int done) const {
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const auto& [weight, range] : result_.inputs) {
      Tensor amax = Tensor::empty(DType::kF32, {static_cast<int64_t>(range.amax.size())});
      std::copy(range.amax.begin(), range.amax.end(), amax.mutable_as<float>().begin());
      Tensor bins = Tensor::empty(DType::kI64, {InputRange::kBins});
      std::copy(range.histogram.begin(), range.histogram.end(), bins.mutable_as<int64_t>().begin());
      tensors.emplace_back("amax." + weight, std::move(amax));
      tensors.emplace_back("histogram." + weight, std::move(bins));
    }
    for (const auto& [weight, moments] : result_.moments) {
      Tensor sums = Tensor::empty(DType::kF32, {moments.size(), moments.size()});
      std::copy(moments.sums().begin(), moments.sums().end(), sums.mutable_as<float>().begin());
      tensors.emplace_back("moments." + weight, std::move(sums));
    }
    for (const CalibrationPoint& p : result_.points) {
      tensors.emplace_back(point_name(p, "latents"), p.latents);
      tensors.emplace_back(point_name(p, "velocity"), p.velocity);
    }
    write_safetensors(partial_, tensors,
                      {{kFingerprint, fingerprint_}, {kDone, std::to_string(done)}});
  }

  // Prompts that an interrupted run has done already.
  int resume() {
    if (partial_.empty() || !path_exists(partial_)) return 0;
    const SafetensorsFile file(partial_);
    const auto& metadata = file.metadata();
    const auto whose = metadata.find(kFingerprint);
    if (whose == metadata.end() || whose->second != fingerprint_) return 0;
    const int done = std::stoi(metadata.at(kDone));
    for (auto& [weight, range] : result_.inputs) {
      const Tensor amax = file.tensor("amax." + weight), bins = file.tensor("histogram." + weight);
      std::copy_n(amax.as<float>().begin(), range.amax.size(), range.amax.begin());
      std::copy_n(bins.as<int64_t>().begin(), range.histogram.size(), range.histogram.begin());
    }
    for (const TensorEntry& entry : file.tensors()) {
      constexpr std::string_view kPrefix = "moments.";
      if (!entry.name.starts_with(kPrefix)) continue;
      const auto sums = file.tensor(entry).as<float>();
      result_.moments[entry.name.substr(kPrefix.size())].restore(entry.shape[0], 0,
                                                                 {sums.begin(), sums.end()});
    }
    for (int prompt = 0; prompt < done; ++prompt) {
      for (const int step : kept_steps(options_)) {
        CalibrationPoint p{prompt, step, {}, {}};
        p.latents = copy_of(file.tensor(point_name(p, "latents")));
        p.velocity = copy_of(file.tensor(point_name(p, "velocity")));
        result_.points.push_back(std::move(p));
      }
    }
    return done;
  }

  DiffusionModel& model_;
  const CalibrationOptions& options_;
  fs::path partial_;
  std::string fingerprint_;
  const ProgressFn& progress_;
  Shape shape_;
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

float InputRange::largest() const {
  uint32_t bits = 0;
  for (const float a : amax) bits = std::max(bits, magnitude_bits(a));
  return bit_cast<float>(bits);
}
bool InputRange::finite() const { return std::isfinite(largest()); }

Calibration calibrate(DiffusionModel& model, const FlowMatchConfig& schedule,
                      const CalibrationOptions& options, const fs::path& partial,
                      const std::string& fingerprint, const ProgressFn& progress) {
  return Calibrator(model, schedule, options, partial, fingerprint, progress).run();
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
