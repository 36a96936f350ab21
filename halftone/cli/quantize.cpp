// halftone quantize: the weights of one file, in another format.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/cli/cli.h"
#include "halftone/cli/flags.h"
#include "halftone/cli/progress_bar.h"
#include "halftone/cli/quantize_model.h"
#include "halftone/io/output.h"
#include "halftone/models/families.h"
#include "halftone/quantize/convert_file.h"
#include "halftone/quantize/model_checks.h"
#include "halftone/quantize/quantize_file.h"

namespace halftone::cli {
namespace {

using nlohmann::ordered_json;

struct QuantizeFlags {
  std::string input, output, format;
  std::vector<std::string> include, exclude;
  int threads = 0;
  bool json = false;
};

const std::vector<std::string> kFormats = {"fp8",   "fp8-tensor",   "mxfp8",
                                           "nvfp4", "nvfp4-4over6", "nvfp4-16x16"};

double ratio(int64_t after, int64_t before) {
  return before == 0 ? 1.0 : static_cast<double>(after) / static_cast<double>(before);
}

ordered_json report_json(const FileQuantizeReport& report, const QuantizeFlags& options,
                         double seconds) {
  ordered_json out;
  out["input"] = options.input;
  out["output"] = options.output;
  out["format"] = options.format;
  out["seconds"] = seconds;
  out["file_bytes"] = {{"before", report.file_bytes_before}, {"after", report.file_bytes_after}};
  out["converted_bytes"] = {{"before", report.converted_bytes_before()},
                            {"after", report.converted_bytes_after()}};
  out["relative_error"] = {{"mean", report.mean_error()},
                           {"worst", report.worst()->relative_error},
                           {"worst_tensor", report.worst()->name}};
  out["copied"] = {{"tensors", report.copied}, {"bytes", report.copied_bytes}};
  out["converted"] = ordered_json::array();
  for (const auto& tensor : report.converted) {
    out["converted"].push_back({{"name", tensor.name},
                                {"shape", tensor.shape.dims()},
                                {"bytes_before", tensor.bytes_before},
                                {"bytes_after", tensor.bytes_after},
                                {"relative_error", tensor.relative_error}});
  }
  out["kept"] = ordered_json::array();
  for (const auto& tensor : report.kept) {
    out["kept"].push_back({{"name", tensor.name}, {"reason", tensor.reason}});
  }
  out["unmatched_patterns"] = report.unmatched_patterns;
  return out;
}

void print_row(const std::string& what, size_t tensors, int64_t before, int64_t after,
               const std::string& errors) {
  fmt::print("  {:<21} {:>7} {:>12} {:>12} {:>6.3f}{}\n", what, tensors, human_bytes(before),
             human_bytes(after), ratio(after, before), errors);
}

void print_text(const FileQuantizeReport& report, const QuantizeFlags& options, double seconds) {
  fmt::print("{} -> {} in {}\n", printable(options.input, 1000), printable(options.output, 1000),
             human_seconds(seconds));
  fmt::print("  {:<21} {:>7} {:>12} {:>12} {:>6} {:>11} {:>11}\n", "", "TENSORS", "BEFORE", "AFTER",
             "RATIO", "ERROR MEAN", "WORST");
  const auto& worst = *report.worst();
  print_row(options.format + " weights", report.converted.size(), report.converted_bytes_before(),
            report.converted_bytes_after(),
            fmt::format(" {:>11.3e} {:>11.3e}  {}", report.mean_error(), worst.relative_error,
                        printable(worst.name)));
  print_row("copied", static_cast<size_t>(report.copied), report.copied_bytes, report.copied_bytes,
            "");
  print_row("file", report.converted.size() + static_cast<size_t>(report.copied),
            report.file_bytes_before, report.file_bytes_after, "");
  constexpr size_t kMostListed = 20;
  if (!report.kept.empty()) fmt::print("  weights kept as they were:\n");
  for (size_t i = 0; i < std::min(kMostListed, report.kept.size()); ++i) {
    fmt::print("    {}: {}\n", printable(report.kept[i].name), report.kept[i].reason);
  }
  if (report.kept.size() > kMostListed) {
    fmt::print("    and {} more (--json lists all)\n", report.kept.size() - kMostListed);
  }
}

// Into our own layout, and from there into the dialect.
FileQuantizeReport quantize_as(Dialect dialect, const QuantizeFlags& options,
                               const FileQuantizeOptions& how, Stream stream,
                               const ProgressFn& progress) {
  if (dialect == Dialect::kHalftone) {
    return quantize_file(options.input, options.output, how, cpu_kernels(), stream, progress);
  }
  const Temporary step(options.output, Temporary::Kind::kFolder);
  const std::filesystem::path ours = step.path() / "weights.safetensors";
  FileQuantizeReport report =
      quantize_file(options.input, ours, how, cpu_kernels(), stream, progress);
  report.file_bytes_after =
      convert_file(ours, options.output, {dialect, {}}, progress).file_bytes_after;
  return report;
}

// What a file alone has no use for.
void check_needs_no_model(const CLI::App& command, const QuantizeModelFlags& model) {
  const char* const why = "needs --model: a file alone cannot be run";
  refuse_given(command,
               {"--calibrate", "--budget", "--recipe", "--samples", "--minimize", "--search-points",
                "--max-memory", "--size", "--steps", "--guidance", "--scheduler", "--seed"},
               why);
  if (model.certify > 0) refuse_given(command, {"--certify"}, why);
  if (model.rounding == "compensated") refuse_given(command, {"--rounding"}, why);
  if (model.split_inputs != "off") refuse_given(command, {"--split-inputs"}, why);
  if (model.activations == "static") refuse_given(command, {"--activations"}, why);
  if (model.model.device.starts_with("cuda")) {
    refuse_given(command, {"--device"}, "needs --model: a file alone is quantized on the CPU");
  }
}

// Text encoders and a VAE are in the same file, and read in high precision alone.
void check_is_no_whole_model(const QuantizeFlags& options) {
  if (!options.include.empty() || is_folder(options.input)) return;
  const Family* family = whole_model_in(Checkpoint::open(options.input));
  if (family == nullptr) return;
  throw Error(ErrorCode::kUsage, "--include",
              "is needed: '{}' holds a whole {} model, its text encoders and VAE too; say which "
              "weights, such as 'model.diffusion_model.*'",
              printable(options.input), family->title);
}

void run_quantize(const CLI::App& command, const QuantizeFlags& options, QuantizeModelFlags& model,
                  const Context& context) {
  if (options.input.empty()) {
    model.format = options.format;
    model.output = options.output;
    model.include = options.include;
    model.exclude = options.exclude;
    model.model.threads = options.threads;
    model.json = options.json;
    return run_quantize_model(command, model, context);
  }
  if (!model.model.model.empty()) {
    throw Error(ErrorCode::kUsage, "--model", "and a file are both given");
  }
  if (options.format.empty()) throw Error(ErrorCode::kUsage, "--format", "is needed");
  check_needs_no_model(command, model);
  check_dialect_holds(*find_dialect(model.dialect), *find_format(options.format));
  check_is_no_whole_model(options);
  FileQuantizeOptions how{
      *find_format(options.format), options.include, options.exclude, {}, {}, {}};
  const Stream stream{start_threads(options.threads)};
  ProgressBar bar("quantizing", context, options.json);
  const auto start = std::chrono::steady_clock::now();
  const ProgressFn show = [&](const Progress& progress) { bar.update(progress); };
  auto report = quantize_as(*find_dialect(model.dialect), options, how, stream, show);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  bar.clear();
  for (const std::string& pattern : report.unmatched_patterns) {
    print_note("halftone quantize: warning: pattern '{}' matches no 2-D *.weight\n",
               printable(pattern));
  }
  if (options.json) {
    print_json(report_json(report, options, seconds));
  } else {
    print_text(report, options, seconds);
  }
}

}  // namespace

void add_quantize(CLI::App& app, const Context& context) {
  CLI::App* command = app.add_subcommand("quantize", "Write the weights of a file in 8 or 4 bits");
  command->footer(
      "With a file, every 2-D tensor called *.weight is converted; everything else is copied. "
      "With\n"
      "--model, the linears that the model's family allows, and the result is a model folder with\n"
      "recipe.toml; --calibrate measures what linears are given and rounds weights accordingly,\n"
      "--budget also chooses a format for each of them. Both add a certificate of how far the "
      "result\nis from the original. An interrupted calibration goes on where it was.\n"
      "Formats:\n"
      "  fp8         E4M3, a float scale per output channel        8 bits a weight\n"
      "  fp8-tensor  E4M3, one float scale per tensor              8 bits\n"
      "  mxfp8       E4M3, a power-of-two scale per 32 weights     8.25 bits\n"
      "  nvfp4       E2M1, an E4M3 scale per 16 weights under one\n"
      "              float scale per tensor                        4.5 bits\n"
      "  nvfp4-4over6  the same, each block scaled to 4 or to 6,\n"
      "              whichever is nearer; a search tries it, too    4.5 bits\n"
      "  nvfp4-16x16 the same, a scale for 16 x 16 weights: equal\n"
      "              along rows and columns; rounded to nearest     4.5 bits\n"
      "The relative error printed is |x - quantized x| / |x| per tensor. The output appears under\n"
      "its name only when it is complete; Ctrl-C removes what was begun. Examples:\n"
      "  halftone quantize model.safetensors --format fp8 -o model-fp8.safetensors\n"
      "  halftone quantize model.safetensors --format nvfp4 -o out.safetensors \\\n"
      "      --include 'layers.*' --exclude '*norm*' --exclude '*embedder*'\n"
      "  halftone quantize --model DIR --format fp8 --calibrate prompts.txt -o DIR-fp8\n"
      "  halftone quantize --model DIR --format nvfp4 --budget cosine=0.995 -o DIR-nvfp4\n"
      "  halftone quantize --model DIR --recipe DIR-nvfp4/recipe.toml -o AGAIN");
  auto options = std::make_shared<QuantizeFlags>();
  command->add_option("file", options->input, "The .safetensors file to read")->type_name("FILE");
  command
      ->add_option("-f,--format", options->format,
                   "fp8, fp8-tensor, mxfp8, nvfp4, nvfp4-4over6 or nvfp4-16x16")
      ->type_name("F")
      ->check(CLI::IsMember(kFormats));
  command
      ->add_option("-o,--output", options->output, "The .safetensors file, or the folder, to write")
      ->required()
      ->type_name("OUT");
  command
      ->add_option("--include", options->include,
                   "Convert only weights whose name matches; * stands for anything (repeatable)")
      ->type_name("PATTERN")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command
      ->add_option("--exclude", options->exclude,
                   "Leave weights whose name matches as they are (repeatable)")
      ->type_name("PATTERN")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--threads", options->threads, "CPU threads (default: all)")
      ->type_name("N")
      ->check(CLI::Range(1, 256));
  command->add_flag("--json", options->json, "Print one JSON object instead of text");
  auto model = std::make_shared<QuantizeModelFlags>();
  add_quantize_model(*command, *model);
  command->callback(
      [command, options, model, &context] { run_quantize(*command, *options, *model, context); });
}

}  // namespace halftone::cli
