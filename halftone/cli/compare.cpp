// halftone compare: what precisions do to a model, as numbers, charts and pictures.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/cli/cli.h"
#include "halftone/cli/flags.h"
#include "halftone/cli/model_options.h"
#include "halftone/cli/progress_bar.h"
#include "halftone/io/output.h"
#include "halftone/quantize/compare_model.h"

namespace halftone::cli {
namespace {

namespace fs = std::filesystem;

struct CompareFlags {
  ModelOptions model;
  std::vector<std::string> precisions = {"fp8", "mxfp8", "nvfp4"}, texts, prompts;
  SamplingOptions sampling;
  std::string reference = "bf16", file, output = "compare.html";
  std::vector<float> caches;
  int seeds = 1;
  bool json = false;
};

CompareModelOptions compare_options(const CompareFlags& flags, const Context& context) {
  CompareModelOptions options;
  if (!flags.model.max_memory.empty()) {
    options.max_memory = parse_bytes(flags.model.max_memory, "--max-memory");
  }
  options.model = spec_of(flags.model, context);
  options.precisions = flags.precisions;
  options.text_precisions = flags.texts;
  options.reference = flags.reference;
  options.caches = flags.caches;
  options.scheduler = flags.sampling.scheduler;
  ParityOptions& how = options.parity;
  if (const std::string& size = flags.sampling.size; !size.empty()) {
    std::tie(how.width, how.height) = parse_size(size);
  }
  how.steps = flags.sampling.steps;
  how.guidance = flags.sampling.guidance;
  how.prompts = gather_prompts(flags.prompts, flags.file);
  how.seeds = flags.seeds;
  how.first_seed = flags.sampling.seed;
  return options;
}

// What the library has as a list is given one by one here.
ParityReport compare(const CompareModelOptions& options, ProgressBar& bar, const Context& context) {
  try {
    return compare_model(*context.engine, options, [&](const Progress& p) { bar.update(p); });
  } catch (const Error& error) {
    const std::string& where = error.where();
    if (where != "precisions" && where != "text_precisions" && where != "prompts") throw;
    throw Error(error.code(), where.substr(0, where.size() - 1), "{}", error.message());
  }
}

void print_table(const ParityReport& report) {
  fmt::print("{:<13} {:>10} {:>10} {:>10} {:>9} {:>8} {:>8} {:>11} {:>9}\n", "precision",
             "velocity", "5% tail", "worst", "latents", "SSIM", "PSNR", "weights", "a step");
  for (const ParityResult& r : report.results) {
    const bool floor = r.name == "floor";
    fmt::print("{:<13} {:>10.6f} {:>10.6f} {:>10.6f} {:>9.5f} {:>8.4f} {:>8.1f} {:>11} {:>9}\n",
               r.name, r.velocity_cosine_all.mean, r.velocity_cosine_all.tail,
               r.velocity_cosine_all.worst, r.rollout_cosine.back().mean, r.ssim.mean,
               std::min(r.psnr.mean, 99.9), floor ? "" : human_bytes(r.weight_bytes),
               floor ? "" : human_seconds(r.seconds_per_step));
  }
  fmt::print("cosines against {}; floor: {} with its input disturbed by {:g}\n", report.reference,
             report.reference, report.options.disturbance);
  for (const ParityResult& r : report.results) {
    if (!r.of_text) continue;
    for (const TextParity& t : r.texts) {
      fmt::print("{}: cosine of a token in {}/{}: {:.6f}, 5% tail {:.6f}, worst {:.6f}\n", r.name,
                 t.encoder, t.output, t.cosine.mean, t.cosine.tail, t.cosine.worst);
    }
  }
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
  const CompareModelOptions how = compare_options(options, context);
  ProgressBar bar("comparing", context, options.json, ProgressBar::Unit::kSteps);
  const ParityReport report = compare(how, bar, context);
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
  // Here there are several.
  command->remove_option(command->get_option("--precision"));
  command->remove_option(command->get_option("--text-precision"));
  CLI::Option* const precisions =
      command
          ->add_option(
              "--precision", o->precisions,
              "Precisions, or folders that 'halftone quantize --model' wrote, separated by "
              "commas")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->capture_default_str()
          ->type_name("P,...")
          ->check(precision_name() | CLI::ExistingDirectory);
  command
      ->add_option("--text-precision", o->texts,
                   "Precisions of the text encoders, separated by commas, beside the reference's "
                   "transformer; alone unless --precision is given, too")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("P,...")
      ->check(precision_name());
  command
      ->add_option("--cache", o->caches,
                   "Measure step caches of these thresholds as well, in the precision of "
                   "--reference, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("T,...")
      ->check(finite_number(0, 1));
  command->add_option("--seeds", o->seeds, "Seeds per prompt")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  add_sampling_options(*command, o->sampling);
  command->add_option("-o,--output", o->output, "The HTML page to write")
      ->capture_default_str()
      ->type_name("OUT.html");
  command->add_flag("--json", o->json, "Print the JSON instead of a table");
  command->callback([o, precisions, &context] {
    if (!o->texts.empty() && precisions->count() == 0) o->precisions.clear();
    run_compare(*o, context);
  });
}

}  // namespace halftone::cli
