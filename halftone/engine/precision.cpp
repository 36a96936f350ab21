#include "halftone/engine/precision.h"

#include "halftone/base/error.h"
#include "halftone/engine/certificate.h"
#include "halftone/io/stored_weights.h"

namespace halftone {
namespace {

// What "auto" means for weights that are stored in high precision.
const Format& usual_format(const DeviceInfo& device) {
  return device.device.kind == DeviceKind::kCpu ? formats::fp32 : formats::bf16;
}

}  // namespace

StoredChoice choose_stored(const Checkpoint& file, const DeviceInfo& device, double threshold) {
  const StoredWeights stored = read_stored_weights(file);
  if (stored.weights.empty()) return {};
  for (const auto& [name, weight] : stored.weights) {
    const FormatSupport how = format_support(device, weight.format);
    if (how.support != Support::kNative) {
      return {false, fmt::format("{} is not native here: {}", weight.format.name, how.why)};
    }
  }
  const auto certificate = certificate_in(file.metadata(), file.path().string());
  if (!certificate) return {false, "the file has no certificate of what its format costs"};
  const double cosine = certificate->velocity_cosine.mean;
  return {certificate->meets(threshold),
          fmt::format("its certificate says a velocity cosine of {:.5f}, {} the threshold of {:g}",
                      cosine, certificate->meets(threshold) ? "above" : "below", threshold)};
}

void set_precision(const std::string& asked, const DeviceInfo& device, LoadOptions& load) {
  load.automatic = asked == "auto" || asked == "stored";
  const std::string_view activations = load.automatic ? usual_format(device).name : asked;
  load.activations = activations == "fp32" ? DType::kF32 : DType::kBF16;
  const Format format = find_format(asked).value_or(formats::fp32);
  if (format.quantized()) load.format = format;
  load.quantize_activations = load.automatic || format.quantized();
}

void set_text_precision(const std::string& asked, LoadOptions& load) {
  const std::optional<Format> format = find_format(asked);
  if (!format) return;        // auto
  if (format->quantized()) {  // weights alone: values are as wide as the denoiser's
    load.text_format = *format;
  } else {
    load.text_activations = *format == formats::fp32 ? DType::kF32 : DType::kBF16;
  }
}

Choice chosen_text_precision(const std::string& asked, const DeviceInfo& device,
                             const Model& model) {
  std::map<std::string, int> formats;
  int linears = 0;
  for (const EncoderReport& encoder : model.report().encoders) {
    for (const auto& [name, count] : encoder.formats) formats[name] += count, linears += count;
  }
  const Format computed = model.text_activations() == DType::kF32 ? formats::fp32 : formats::bf16;
  const FormatSupport how = format_support(device, computed);
  Choice choice{asked, std::string(computed.name), std::string(to_string(how.support)),
                std::string(how.why)};
  if (formats.empty()) return choice;
  choice.used = format_names(formats);
  choice.why = fmt::format(
      "weights of {} linears of text encoders in {}, multiplied in {} as what "
      "they stand for: {}",
      linears, choice.used, computed.name, how.why);
  if (asked != "auto" && asked != choice.used) {
    choice.how = "fallback";
    choice.why = fmt::format("the text encoders' weights are stored as {}", choice.used);
  }
  return choice;
}

Choice chosen_precision(const std::string& asked, const DeviceInfo& device,
                        const LoadReport& report, const StoredChoice& stored) {
  const auto support = [&](const Format& format) { return format_support(device, format); };
  const bool quantizes = asked != "fp32" && asked != "bf16";
  if (asked == "stored" && !report.stored) {
    throw Error(ErrorCode::kUsage, "precision", "stored: the weights are not quantized");
  }
  if (asked == "auto" && report.stored && !stored.as_stored) {
    return {asked, "bf16", std::string(to_string(support(formats::bf16).support)),
            fmt::format("computed with what the weights, stored as {}, stand for: {}",
                        format_names(report.formats), stored.why)};
  }
  if (report.formats.empty() || !quantizes) {
    const Format format = quantizes ? usual_format(device) : *find_format(asked);
    const FormatSupport how = support(format);
    Choice choice{asked, std::string(format.name), std::string(to_string(how.support)),
                  std::string(how.why)};
    if (report.stored) choice.why += ", weights stored as " + format_names(report.formats);
    return choice;
  }
  const std::string used = format_names(report.formats);
  int linears = 0;
  bool per_picture = false;
  for (const auto& [name, count] : report.formats) {
    const Format format = find_format(name).value_or(formats::fp8);
    per_picture |= format.span == ScaleSpan::kTensor || format.global_scale;
    linears += count;
  }
  const FormatSupport how = support(*find_format(report.formats.begin()->first));
  Choice choice{asked, used, std::string(to_string(how.support)),
                fmt::format("{} linears of the blocks in {}: {}", linears, used, how.why)};
  if (report.stored) choice.why += "; weights as stored";
  if (asked == "auto") choice.why += "; " + stored.why;
  if (per_picture && !report.calibrated) {
    choice.why += "; activations scaled per picture, without calibration";
  }
  if (asked != "auto" && asked != "stored" && asked != used) {
    choice.how = "fallback";
    choice.why = fmt::format("the checkpoint's weights are stored as {}", used);
  }
  return choice;
}

std::string format_names(const std::map<std::string, int>& formats) {
  std::string out;
  for (const auto& [name, count] : formats) out += (out.empty() ? "" : " and ") + name;
  return out;
}

}  // namespace halftone
