#include "halftone/quantize/compare_model.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/version.h"
#include "halftone/engine/checks.h"
#include "halftone/quantize/prompt_plan.h"
#include "halftone/quantize/prompt_sets.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

void require_field(bool holds, const char* field, const std::string& why) {
  if (!holds) throw Error(ErrorCode::kUsage, field, "{}", why);
}

void require_comparable(const char* field, const std::string& precision) {
  require_field(
      is_folder(precision) || find_format(precision).has_value(), field,
      fmt::format("'{}' is neither a precision such as fp8 nor a folder of a quantized model",
                  printable(precision)));
}

void require_parity(const ParityOptions& how) {
  const auto require_range = [](const char* field, auto value, auto least, auto most) {
    require_field(value >= least && value <= most, field,  // what is no number is in no range
                  fmt::format("{} is not from {} to {}", value, least, most));
  };
  constexpr int64_t kMostPixels = 65536;
  require_range("seeds", how.seeds, 1, 1000);
  require_range("width", how.width, int64_t{0}, kMostPixels);
  require_range("height", how.height, int64_t{0}, kMostPixels);
  require_range("steps", how.steps, 0, kMostSteps);
  if (!(how.guidance < 0)) require_range("guidance", how.guidance, 0.0f, 100.0f);
  require_range("disturbance", how.disturbance, 0.0, 1.0);
  require_range("layer_cases", how.layer_cases, 0, 1000000);
}

// All that is known before any work.
void require_valid(const CompareModelOptions& o) {
  ModelSpec model = o.model;
  model.precision = model.text_precision = "auto";
  check(model);
  require_field(!o.precisions.empty() || !o.text_precisions.empty() || !o.caches.empty(),
                "precisions", "none are given");
  for (const std::string& precision : o.text_precisions) {
    require_field(find_format(precision).has_value(), "text_precisions",
                  fmt::format("'{}' is no precision such as fp8", printable(precision)));
  }
  for (const float threshold : o.caches) {
    require_field(threshold > 0 && threshold <= 1, "cache",
                  fmt::format("{:g} is not above 0 and at most 1", threshold));
  }
  for (const std::string& precision : o.precisions) require_comparable("precisions", precision);
  require_comparable("reference", o.reference);
  require_parity(o.parity);
  require_field(o.max_memory >= 0, "max_memory", fmt::format("{} is less than 0", o.max_memory));
}

// What lies below knows one precision and one prompt; here there are more.
template <class Work>
auto in_our_fields(const char* precision, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    const std::string& where = error.where();
    const char* const field = where == "precision"        ? precision
                              : where == "text_precision" ? "text_precisions"
                              : where == "prompt"         ? "prompts"
                              : where == "max-memory"     ? "max_memory"
                                                          : nullptr;
    if (field == nullptr) throw;
    throw Error(error.code(), field, "{}", error.message());
  }
}

class ModelComparison {
 public:
  ModelComparison(Engine& engine, const CompareModelOptions& options, const ProgressFn& progress)
      : engine_(engine), options_(options), progress_(progress) {}

  ParityReport run() {
    require_valid(options_);
    report_.version = version();
    in_our_fields("reference", [&] { measure_reference(); });
    for (const std::string& precision : options_.precisions) {
      in_our_fields("precisions", [&] { measure(precision, "auto"); });
    }
    for (const std::string& text : options_.text_precisions) {
      in_our_fields("reference", [&] { measure(options_.reference, text); });
    }
    return std::move(report_);
  }

 private:
  LoadedModel load(const std::string& precision, const std::string& text) const {
    ModelSpec how = options_.model;
    how.precision = precision;
    how.text_precision = text;
    if (is_folder(precision)) {
      how.path = precision;
      how.precision = "stored";
    }
    return engine_.load(how);
  }

  // What is asked for, of the reference.
  SchedulerConfig plan(const Sampling& usual) {
    ParityOptions& how = report_.options;
    how = options_.parity;
    SamplingChoice choice;
    if (how.steps > 0) choice.steps = how.steps;
    if (how.guidance >= 0) choice.guidance = how.guidance;
    choice.scheduler = options_.scheduler;
    const Sampling sampling = sampling_of(choice, usual);
    if (how.width == 0) how.width = sampling.width;
    if (how.height == 0) how.height = sampling.height;
    how.steps = sampling.steps;
    how.guidance = sampling.guidance;
    if (how.prompts.empty()) how.prompts = usual_prompt_sets().certificate;
    total_ = reference_predictions(how) +
             compared_predictions(how) *
                 static_cast<int64_t>(options_.precisions.size() + options_.text_precisions.size() +
                                      options_.caches.size() + 1);
    return sampling.scheduler;
  }

  // Of all that is done; what is told is a part of it.
  ProgressFn counted() const {
    return [this](const Progress& p) {
      if (progress_) progress_({p.item, done_ + p.done, total_});
    };
  }

  // Bytes of the model's weights; whether there is memory for a run is found out on the way.
  int64_t weight_bytes(const LoadedModel& loaded) const {
    GenerateRequest request = loaded.request(report_.options.prompts[0]);
    request.width = report_.options.width;
    request.height = report_.options.height;
    request.guidance = report_.options.guidance;
    const ModelMemory memory = plan_generate(*loaded.pipeline, request);
    check_memory(loaded, memory, options_.max_memory);
    return memory.file_weights + memory.owned_weights;
  }

  void note_fallbacks(const LoadedModel& loaded) {
    const std::vector<std::string> of_device = run_fallbacks(loaded);
    if (options_.model.strict && !of_device.empty()) {
      throw Error(ErrorCode::kFallback, "strict", "{}", of_device[0]);
    }
    auto& noted = report_.fallbacks;
    for (const auto& lines : {loaded.fallbacks, of_device}) {
      for (const std::string& line : lines) {
        if (std::find(noted.begin(), noted.end(), line) == noted.end()) noted.push_back(line);
      }
    }
  }

  // And the floor, which is of the same model.
  void measure_reference() {
    const LoadedModel loaded = load(options_.reference, "auto");
    const SchedulerConfig scheduler = plan(loaded.sampling);
    const ParityOptions& how = report_.options;
    report_.model = loaded.path;
    report_.hash = loaded.model->hash();
    report_.reference = loaded.precision.used;
    report_.device = loaded.device.used;
    weight_bytes(loaded);
    report_.run = run_reference(*loaded.pipeline, scheduler, how, counted());
    done_ += reference_predictions(how);
    ParityResult floor =
        compare_with(report_.run, *loaded.pipeline, how, {how.disturbance}, counted());
    floor.name = "floor";
    done_ += compared_predictions(how);
    const int64_t bytes = weight_bytes(loaded);
    for (const float threshold : options_.caches) measure_cache(loaded, threshold, bytes);
    note_fallbacks(loaded);
    report_.results.push_back(std::move(floor));
  }

  // Steps that reuse what the blocks added, in the reference's own precision.
  void measure_cache(const LoadedModel& loaded, float threshold, int64_t bytes) {
    const ParityOptions& how = report_.options;
    ParityResult result =
        compare_with(report_.run, *loaded.pipeline, how, {0, threshold}, counted());
    result.name = fmt::format("cache {:g}", threshold);
    result.how = fmt::format("{}, {:.0f}% of the steps reused", report_.reference,
                             100 * result.reused_share);
    result.weight_bytes = bytes;
    done_ += compared_predictions(how);
    report_.results.push_back(std::move(result));
  }

  void measure(const std::string& precision, const std::string& text) {
    const LoadedModel loaded = load(precision, text);
    const int64_t bytes = weight_bytes(loaded);
    ParityResult result =
        compare_with(report_.run, *loaded.pipeline, report_.options, {}, counted());
    result.name =
        is_folder(precision) ? fs::path(precision).filename().string() : loaded.precision.used;
    result.how = loaded.precision.how;
    result.of_text = text != "auto";
    if (result.of_text) {
      result.name = "text " + loaded.text_precision.used;
      result.how = loaded.text_precision.how;
    }
    note_fallbacks(loaded);
    result.weight_bytes = bytes;
    done_ += compared_predictions(report_.options);
    report_.results.insert(report_.results.end() - 1, std::move(result));  // the floor stays last
  }

  Engine& engine_;
  const CompareModelOptions& options_;
  const ProgressFn& progress_;
  int64_t done_ = 0, total_ = 0;  // predictions
  ParityReport report_;
};

}  // namespace

ParityReport compare_model(Engine& engine, const CompareModelOptions& options,
                           const ProgressFn& progress) {
  return ModelComparison(engine, options, progress).run();
}

}  // namespace halftone
