// halftone compare: what precisions do to a model, as numbers, charts and pictures.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/cli/cli.h"
#include "halftone/cli/flags.h"
#include "halftone/cli/model_options.h"
#include "halftone/cli/progress_bar.h"
#include "halftone/io/output.h"
#include "halftone/quantize/parity_report.h"

namespace halftone::cli {
namespace {

namespace fs = std::filesystem;

struct CompareFlags {
  ModelOptions model;
  std::vector<std::string> precisions = {"fp8", "mxfp8", "nvfp4"}, prompts;
  SamplingOptions sampling;
  std::string reference = "bf16", file, output = "compare.html";
  int seeds = 1;
  bool json = false;
};

ParityOptions parity_options(const CompareFlags& options, const Sampling& usual) {
  const Sampling sampling = sampling_of(options.sampling, usual);
  ParityOptions how;
  how.prompts = gather_prompts(options.prompts, options.file);
  if (how.prompts.empty()) how.prompts = usual_prompts();
  how.seeds = options.seeds;
  how.first_seed = options.sampling.seed;
  how.width = sampling.width;
  how.height = sampling.height;
  how.steps = sampling.steps;
  how.guidance = sampling.guidance;
  return how;
}

LoadedModel load_in(const CompareFlags& options, const std::string& precision,
                    const Context& context) {
  ModelOptions how = options.model;
  how.precision = precision;
  if (is_folder(precision)) {  // a quantized model: as it is stored
    how.model = precision;
    how.precision = "stored";
  }
  return load(how, context);
}

// Bytes of the model's weights; the memory that a run takes is checked on the way.
int64_t weight_bytes(const LoadedModel& loaded, const ParityOptions& how,
                     const std::string& max_memory) {
  GenerateRequest request = loaded.request(how.prompts[0]);
  request.width = how.width;
  request.height = how.height;
  request.guidance = how.guidance;
  const ModelMemory memory = plan_generate(*loaded.pipeline, request);
  check_memory(loaded, memory, max_memory);
  return memory.file_weights + memory.owned_weights;
}

void print_table(const ParityReport& report) {
  fmt::print("{:<11} {:>10} {:>10} {:>10} {:>9} {:>8} {:>8} {:>11} {:>9}\n", "precision",
             "velocity", "5% tail", "worst", "latents", "SSIM", "PSNR", "weights", "a step");
  for (const ParityResult& r : report.results) {
    const bool floor = r.name == "floor";
    fmt::print("{:<11} {:>10.6f} {:>10.6f} {:>10.6f} {:>9.5f} {:>8.4f} {:>8.1f} {:>11} {:>9}\n",
               r.name, r.velocity_cosine_all.mean, r.velocity_cosine_all.tail,
               r.velocity_cosine_all.worst, r.rollout_cosine.back().mean, r.ssim.mean,
               std::min(r.psnr.mean, 99.9), floor ? "" : human_bytes(r.weight_bytes),
               floor ? "" : human_seconds(r.seconds_per_step));
  }
  fmt::print("cosines against {}; floor: {} with its input disturbed by {:g}\n", report.reference,
             report.reference, report.options.disturbance);
  for (const std::string& line : report.fallbacks) fmt::print("fallback: {}\n", line);
}

void run_compare(const CompareFlags& options, const Context& context) {
  const fs::path page = options.output, data = fs::path(options.output).replace_extension(".json");
  check_output_file(page);
  check_output_file(data);
  auto inputs = inputs_of(options.model);
  inputs.emplace_back(options.file);
  check_not_inputs({page, data}, inputs);
  check_distinct_outputs({{"the JSON beside the page", data}, {"--output", page}});
  ParityReport report;
  report.version = version();
  const auto note_fallbacks = [&](LoadedModel& loaded) {
    add_device_fallbacks(loaded, options.model.strict);
    for (const std::string& line : loaded.fallbacks) {
      auto& lines = report.fallbacks;
      if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
    }
  };
  ProgressBar bar("comparing", context, options.json, ProgressBar::Unit::kSteps);
  int64_t before = 0, total = 0;
  const ProgressFn progress = [&](const Progress& p) {
    bar.update({p.item, before + p.done, total});
  };
  {
    LoadedModel loaded = load_in(options, options.reference, context);
    report.options = parity_options(options, loaded.sampling);
    report.model = loaded.path;
    report.hash = loaded.model->hash();
    report.reference = loaded.precision.used;
    report.device = loaded.device.used;
    const int64_t each = compared_predictions(report.options);
    before = reference_predictions(report.options);
    total = before + each * static_cast<int64_t>(options.precisions.size() + 1);
    before = 0;
    weight_bytes(loaded, report.options, options.model.max_memory);
    report.run =
        run_reference(*loaded.pipeline, sampling_of(options.sampling, loaded.sampling).scheduler,
                      report.options, progress);
    before = reference_predictions(report.options);
    ParityResult floor = compare_with(report.run, *loaded.pipeline, report.options,
                                      report.options.disturbance, progress);
    floor.name = "floor";
    note_fallbacks(loaded);
    before += each;
    report.results.push_back(std::move(floor));
  }
  for (const std::string& precision : options.precisions) {
    LoadedModel loaded = load_in(options, precision, context);
    const int64_t bytes = weight_bytes(loaded, report.options, options.model.max_memory);
    ParityResult result = compare_with(report.run, *loaded.pipeline, report.options, 0, progress);
    result.name =
        is_folder(precision) ? fs::path(precision).filename().string() : loaded.precision.used;
    result.how = loaded.precision.how;
    note_fallbacks(loaded);
    result.weight_bytes = bytes;
    before += compared_predictions(report.options);
    report.results.insert(report.results.end() - 1, std::move(result));  // the floor stays last
  }
  bar.clear();
  write_file(page, parity_page(report));
  write_file(data, json_text(parity_json(report), 1) + "\n");
  if (options.json) return print_json(parity_json(report));
  print_table(report);
  fmt::print("{}\n{}\n", page.string(), data.string());
}

}  // namespace

void add_compare(CLI::App& app, const Context& context) {
  CLI::App* command =
      app.add_subcommand("compare", "Measure what precisions do to a model, as a page to read");
  command->footer(
      "Every prediction is compared on the reference's own latents, and whole runs from the same "
      "noise;\nthe floor is the reference against itself with a disturbed input. Writes an HTML "
      "page and the same as\nJSON beside it. Example:\n"
      "  halftone compare --precision fp8,nvfp4 --prompts prompts.txt -o report.html");
  auto o = std::make_shared<CompareFlags>();
  command
      ->add_option("prompt", o->prompts, "Prompts (default: our own that calibration does not use)")
      ->type_name("TEXT...");
  command->add_option("--prompts", o->file, "Read prompts from this file, one per line")
      ->type_name("FILE");
  const auto known = precision_name();
  command->add_option("--reference", o->reference, "What they are compared with")
      ->capture_default_str()
      ->type_name("P")
      ->check(known);
  add_model_options(*command, o->model);
  command->remove_option(command->get_option("--precision"));  // here there are several
  command
      ->add_option("--precision", o->precisions,
                   "Precisions, or folders that 'halftone quantize --model' wrote, separated by "
                   "commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->type_name("P,...")
      ->check(precision_name() | CLI::ExistingDirectory);
  command->add_option("--seeds", o->seeds, "Seeds per prompt")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  add_sampling_options(*command, o->sampling);
  command->add_option("-o,--output", o->output, "The HTML page to write")
      ->capture_default_str()
      ->type_name("OUT.html");
  command->add_flag("--json", o->json, "Print the JSON instead of a table");
  command->callback([o, &context] { run_compare(*o, context); });
}

}  // namespace halftone::cli
