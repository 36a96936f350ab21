// halftone convert: quantized weights in another tool's dialect.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/cli/cli.h"
#include "halftone/cli/progress_bar.h"
#include "halftone/quantize/convert_file.h"

namespace halftone::cli {
namespace {

using nlohmann::ordered_json;

struct ConvertFlags {
  std::string input, output, to, nibbles = "auto", scales = "auto";
  bool json = false;
};

const std::vector<std::string> kDialects = {"halftone", "comfyui", "modelopt", "compressed-tensors",
                                            "torchao"};

ordered_json report_json(const FileConvertReport& report, const ConvertFlags& options,
                         double seconds) {
  ordered_json out;
  out["input"] = options.input;
  out["output"] = options.output;
  out["from"] = to_string(report.from);
  out["to"] = options.to;
  out["seconds"] = seconds;
  out["file_bytes"] = {{"before", report.file_bytes_before}, {"after", report.file_bytes_after}};
  out["copied"] = {{"tensors", report.copied}, {"bytes", report.copied_bytes}};
  out["converted_bytes"] = report.converted_bytes;
  out["converted"] = ordered_json::array();
  for (const auto& weight : report.converted) {
    out["converted"].push_back({{"name", weight.name},
                                {"format", weight.format},
                                {"shape", weight.shape.dims()},
                                {"input_scale", weight.input_scale},
                                {"full_precision", weight.full_precision}});
  }
  out["config"] = report.config.empty() ? ordered_json() : ordered_json(report.config.string());
  return out;
}

void print_text(const FileConvertReport& report, const ConvertFlags& options, double seconds) {
  fmt::print("{} -> {} in {}\n", printable(options.input, 1000), printable(options.output, 1000),
             human_seconds(seconds));
  fmt::print("  {:<12} {} to {}\n", "dialect", to_string(report.from), options.to);
  std::map<std::string, int> formats;
  int input_scales = 0, full_precision = 0;
  for (const auto& weight : report.converted) {
    ++formats[weight.format];
    input_scales += weight.input_scale ? 1 : 0;
    full_precision += weight.full_precision ? 1 : 0;
  }
  std::string layers;
  for (const auto& [format, count] : formats) {
    layers += fmt::format("{}{} x {}", layers.empty() ? "" : ", ", count, format);
  }
  fmt::print("  {:<12} {}, {}\n", "converted", layers, human_bytes(report.converted_bytes));
  if (input_scales > 0) fmt::print("  {:<12} {} with an input scale\n", "", input_scales);
  if (full_precision > 0) {
    fmt::print("  {:<12} {} marked to be computed with in full precision\n", "", full_precision);
  }
  fmt::print("  {:<12} {} tensors, {}\n", "copied", report.copied,
             human_bytes(report.copied_bytes));
  fmt::print("  {:<12} {} -> {}\n", "file", human_bytes(report.file_bytes_before),
             human_bytes(report.file_bytes_after));
  if (!report.config.empty()) {
    fmt::print("  {:<12} {}\n", "config", printable(report.config.string(), 1000));
  }
}

void run_convert(const ConvertFlags& options, const Context& context) {
  FileConvertOptions how;
  how.to = *find_dialect(options.to);
  how.read = {*find_nibble_order(options.nibbles), *find_scale_layout(options.scales)};
  ProgressBar bar("converting", context, options.json);
  const auto start = std::chrono::steady_clock::now();
  const auto report = convert_file(options.input, options.output, how,
                                   [&](const Progress& progress) { bar.update(progress); });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  bar.clear();
  if (options.json) {
    print_json(report_json(report, options, seconds));
  } else {
    print_text(report, options, seconds);
  }
}

}  // namespace

void add_convert(CLI::App& app, const Context& context) {
  CLI::App* command =
      app.add_subcommand("convert", "Write quantized weights as another tool stores them");
  command->footer(
      "Codes and scales keep their bits, so that converting back gives the same weights. The\n"
      "dialect of the input is told by its markers. Dialects:\n"
      "  halftone            what 'halftone quantize' writes\n"
      "  comfyui             one scale per tensor in FP8; MXFP8, NVFP4\n"
      "  modelopt            writes NAME.hf_quant_config.json beside NAME.safetensors\n"
      "  compressed-tensors  writes NAME.quantization_config.json, which belongs into config.json\n"
      "  torchao             with the metadata that its safetensors loader wants\n"
      "Which nibble of a byte comes first and how block scales lie is recorded nowhere by some\n"
      "tools; where a file was written in another way than its dialect says, --nibbles and\n"
      "--scales overrule. Examples:\n"
      "  halftone convert model-nvfp4.safetensors --to comfyui -o model-comfy.safetensors\n"
      "  halftone convert from-comfy.safetensors --to halftone -o model.safetensors\n"
      "  halftone convert odd.safetensors --to halftone --nibbles high --scales linear -o "
      "o.safetensors");
  auto options = std::make_shared<ConvertFlags>();
  command
      ->add_option("file", options->input,
                   "The .safetensors file, or folder of shards with an index, to read")
      ->required()
      ->type_name("FILE");
  command->add_option("--to", options->to, "The dialect to write")
      ->required()
      ->type_name("DIALECT")
      ->check(CLI::IsMember(kDialects));
  command
      ->add_option("--nibbles", options->nibbles,
                   "Which FP4 value of a byte comes first in the input: auto, low or high")
      ->type_name("ORDER")
      ->check(CLI::IsMember({"auto", "low", "high"}));
  command
      ->add_option("--scales", options->scales,
                   "How block scales lie in the input: auto, linear or swizzled")
      ->type_name("LAYOUT")
      ->check(CLI::IsMember({"auto", "linear", "swizzled"}));
  command->add_option("-o,--output", options->output, "The .safetensors file to write")
      ->required()
      ->type_name("OUT");
  command->add_flag("--json", options->json, "Print one JSON object instead of text");
  command->callback([options, &context] { run_convert(*options, context); });
}

}  // namespace halftone::cli
