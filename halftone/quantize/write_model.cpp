#include "halftone/quantize/write_model.h"

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/io/output.h"
#include "halftone/quantize/model_checks.h"
#include "halftone/quantize/quantize_checkpoint.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

// What the recipe selects, by the model's own names.
std::map<std::string, WeightChoice> choices(const ModelWrite& what, const Checkpoint& input,
                                            const QuantizeReport& planned) {
  std::map<std::string, WeightChoice> chosen;
  std::map<std::string, std::string> whole_of;
  for (const auto& [weight, widths] : what.model.cuts()) {
    for (size_t i = 0; i < widths.size(); ++i) whole_of[cut_name(weight, i)] = weight;
  }
  for (const auto& linear : planned.converted) {
    const auto whole = whole_of.find(linear.weight);
    if (input.find(whole == whole_of.end() ? linear.weight : whole->second) == nullptr) {
      throw Error(ErrorCode::kUnsupported, what.path,
                  "names its tensors otherwise than diffusers ('{}' is missing); quantize the "
                  "file by itself",
                  printable(linear.weight));
    }
    WeightChoice choice{linear.format, linear.activations && what.recipe.activations, {}};
    const auto scale = what.recipe.input_scales.find(linear.weight);
    if (scale != what.recipe.input_scales.end() && choice.activations &&
        linear.format.scale != ScaleType::kE8M0) {
      choice.input_scale = scale->second;
    }
    chosen[linear.weight] = choice;
  }
  return chosen;
}

}  // namespace

ModelWritten write_model(const ModelWrite& what, const ProgressFn& progress) {
  const std::string part(what.model.denoiser().folder());  // of a folder in diffusers layout
  const Checkpoint input = Checkpoint::open(fs::path(what.path) / part);
  const QuantizeReport planned = what.model.plan_recipe(what.recipe);
  FileQuantizeOptions how{
      what.recipe.format, {}, {}, choices(what, input, planned), what.model.cuts(),
      what.quantizer,     {}};
  if (what.certificate) how.metadata[kCertificateKey] = to_json(*what.certificate);
  ModelWritten written;
  written.kept = planned.kept;
  OutputFolder output(what.output);
  const fs::path& folder = output.staging();
  output.write([&] {
    copy_model_folder(what.path, folder, part, progress);
    written.files =
        quantize_checkpoint(input, folder / part, how, cpu_kernels(), {what.threads}, progress);
    if (what.dialect != Dialect::kHalftone) {
      convert_checkpoint(input, folder / part, what.dialect, progress);
    }
    what.verify();
    write_file(folder / kRecipeName, what.recipe_text);
    if (!what.calibration_text.empty()) {
      write_file(folder / "calibration.json", what.calibration_text);
    }
  });
  output.commit({part, "calibration.json"});
  return written;
}

}  // namespace halftone
