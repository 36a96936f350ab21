#include "halftone/engine/checks.h"

#include <charconv>
#include <cmath>

#include "halftone/base/error.h"

namespace halftone {
namespace {

template <class T>
void check_range(const char* field, T value, T least, T most) {
  if (value >= least && value <= most) return;  // what is no number is in no range
  throw Error(ErrorCode::kUsage, field, "{} is not from {} to {}", value, least, most);
}

bool is_device(std::string_view name) {
  if (name == "auto" || name == "cpu" || name == "cuda") return true;
  if (!name.starts_with("cuda:")) return false;
  uint16_t index = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + 5, end, index);
  return error == std::errc() && stop == end;
}

void check_name(const char* field, const std::string& name, bool known, const char* names) {
  if (known) return;
  throw Error(ErrorCode::kUsage, field, "'{}' is none of {}", printable(name), names);
}

}  // namespace

void check(const ModelSpec& spec) {
  check_name("precision", spec.precision,
             spec.precision == "auto" || spec.precision == "stored" ||
                 find_format(spec.precision).has_value(),
             "auto, stored, fp32, bf16, fp8, fp8-tensor, mxfp8 and nvfp4");
  check_name("text_precision", spec.text_precision,
             spec.text_precision == "auto" || find_format(spec.text_precision).has_value(),
             "auto, fp32, bf16, fp8, fp8-tensor, mxfp8 and nvfp4");
  check_name("device", spec.device, is_device(spec.device), "auto, cpu and cuda[:N]");
  check_name("compile", spec.compile,
             spec.compile == "auto" || spec.compile == "on" || spec.compile == "off",
             "auto, on and off");
  check_range("threads", spec.threads, 0, 256);
  check_range("threshold", spec.threshold, 0.0, 1.0);
}

void check_guidance(float guidance, const Sampling& of) {
  // Off, as in families that have it.
  if (of.embedded_guidance || of.guidance_rule != GuidanceRule::kNone || guidance <= 1) return;
  throw Error(ErrorCode::kUsage, "guidance",
              "{} would do nothing: this model is distilled, and takes no guidance", guidance);
}

void check(const GenerateRequest& request, const Sampling& of) {
  const GuidanceRule rule = of.guidance_rule;
  check_range<int64_t>("width", request.width, 1, 65536);
  check_range<int64_t>("height", request.height, 1, 65536);
  check_range("steps", request.steps, 1, kMostSteps);
  check_range("guidance", request.guidance, 0.0f, 100.0f);
  check_range("count", request.count, 1, 10000);
  check_range("batch", request.batch, 1, 64);
  check_range("true_cfg", request.true_cfg, 0.0f, 100.0f);
  check_range("cache", request.cache, 0.0f, 1.0f);
  check_guidance(request.guidance, of);
  if (request.true_cfg > 0 && !of.embedded_guidance) {
    throw Error(ErrorCode::kUsage, "true_cfg",
                "is for models that read guidance themselves: give this one a guidance instead");
  }
  if (request.negative.value_or("").empty() || takes_two(request, of)) return;
  if (rule == GuidanceRule::kNone) {
    throw Error(ErrorCode::kUsage, "negative",
                "does nothing: this model is distilled, and takes no guidance");
  }
  if (of.embedded_guidance) {
    throw Error(ErrorCode::kUsage, "negative", "does nothing without true_cfg above 1");
  }
  throw Error(ErrorCode::kUsage, "negative", "does nothing without guidance above {}",
              rule == GuidanceRule::kFromNegative ? 1 : 0);
}

void check_prompts(const JobRequest& request, const ModelParts& model) {
  const Conditioner& conditioner = *model.conditioner;
  const Denoiser& denoiser = *model.denoiser;
  const auto check_text = [&](const char* field, const std::string& text) {
    try {
      const int64_t tokens = conditioner.text_tokens(conditioner.tokenize(text));
      denoiser.shape(denoiser.smallest_shape().latents, {&tokens, 1});
    } catch (const Error& error) {
      if (error.where() != "prompt") throw;
      throw Error(error.code(), field, "{}", error.message());
    }
  };
  check_text("prompt", request.prompt);
  if (takes_two(request, model.sampling)) {
    check_text("negative", request.negative.value_or(""));
  }
}

void check_original(const JobRequest& request, const ModelParts& model) {
  const OriginalPicture& original = request.original;
  if (!original.given()) return;
  const char* const field = original.width != 0 || original.height != 0 ? "original_size" : "crop";
  if (!model.denoiser->reads_sizes()) {
    throw Error(ErrorCode::kUsage, field, "does nothing: {} is told of no sizes",
                model.family->title);
  }
  constexpr int64_t kMost = 65536;
  check_range<int64_t>("original_size", original.width, 0, kMost);
  check_range<int64_t>("original_size", original.height, 0, kMost);
  check_range<int64_t>("crop", original.left, 0, kMost);
  check_range<int64_t>("crop", original.top, 0, kMost);
}

}  // namespace halftone
