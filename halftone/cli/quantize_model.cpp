#include "halftone/cli/quantize_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/cli/flags.h"
#include "halftone/cli/progress_bar.h"
#include "halftone/cli/quantize_report.h"

namespace halftone::cli {
namespace {

// Which flags go together is said in their names.
void read_formats(const QuantizeModelFlags& flags, QuantizeModelOptions& options) {
  if (!flags.recipe.empty()) options.recipe = read_recipe(flags.recipe);
  options.recipe_name = flags.recipe;
  if (!options.recipe && flags.format.empty()) {
    throw Error(ErrorCode::kUsage, "--format", "is needed, or a --recipe");
  }
  if (options.recipe && !flags.format.empty()) {
    throw Error(ErrorCode::kUsage, "--format", "and --recipe both say which format");
  }
  if (options.recipe && !flags.budget.empty()) {
    throw Error(ErrorCode::kUsage, "--budget", "makes a recipe, and --recipe gives one");
  }
  if (!flags.format.empty()) options.format = find_format(flags.format);
  if (!flags.budget.empty()) options.budget = parse_budget(flags.budget, *options.format);
}

SamplingChoice choice_of(const SamplingOptions& flags) {
  SamplingChoice choice;
  if (!flags.size.empty()) choice.size = parse_size(flags.size);
  if (flags.steps > 0) choice.steps = flags.steps;
  if (flags.guidance >= 0) choice.guidance = flags.guidance;
  choice.scheduler = flags.scheduler;
  choice.seed = flags.seed;
  return choice;
}

QuantizeModelOptions options_of(const QuantizeModelFlags& flags, const Context& context) {
  QuantizeModelOptions options;
  read_formats(flags, options);
  options.model = spec_of(flags.model, context);
  if (!options.model.path.empty() && path_exists(options.model.path) &&
      !is_folder(options.model.path)) {
    throw Error(ErrorCode::kUsage, "--model",
                "'{}' is no folder; for a single file: halftone quantize FILE --format F -o OUT",
                printable(options.model.path));
  }
  options.sampling = choice_of(flags.sampling);
  options.output = flags.output;
  options.minimize = flags.minimize == "bytes"  ? Minimize::kBytes
                     : flags.minimize == "time" ? Minimize::kTime
                                                : Minimize::kBoth;
  if (flags.rounding == "nearest") options.rounding = Rounding::kNearest;
  if (flags.rounding == "compensated") options.rounding = Rounding::kCompensated;
  options.activations = flags.activations == "static"    ? InputScales::kStatic
                        : flags.activations == "dynamic" ? InputScales::kDynamic
                                                         : InputScales::kAuto;
  options.split_inputs = flags.split_inputs == "on"     ? SplitInputs::kOn
                         : flags.split_inputs == "auto" ? SplitInputs::kAuto
                                                        : SplitInputs::kOff;
  options.dialect = *find_dialect(flags.dialect);
  options.include = flags.include;
  options.exclude = flags.exclude;
  options.calibrate = flags.calibrate;
  options.prompts = gather_prompts({}, flags.prompts);
  options.prompts_name = flags.prompts;
  options.samples = flags.samples;
  options.certify = flags.certify;
  options.search_points = flags.search_points;
  if (!flags.model.max_memory.empty()) {
    options.max_memory = parse_bytes(flags.model.max_memory, "--max-memory");
  }
  return options;
}

// Flags that would be passed over, because nothing is run that they are about.
void check_useful(const CLI::App& command, const QuantizeModelOptions& options) {
  if (!options.budget) {
    refuse_given(command, {"--minimize", "--search-points"},
                 "needs --budget, whose search it is about");
  }
  if (!calibrates(options)) {
    const char* const why = "needs calibration: give --calibrate or --budget as well";
    refuse_given(
        command,
        {"--samples", "--max-memory", "--size", "--steps", "--guidance", "--scheduler", "--seed"},
        why);
    if (options.certify > 0) refuse_given(command, {"--certify"}, why);
  }
  if (calibrates_as_before(options)) {
    refuse_given(command, {"--samples", "--size", "--steps", "--guidance", "--seed"},
                 "is as the recipe says: --calibrate with a file of prompts calibrates anew");
  }
}

}  // namespace

void run_quantize_model(const CLI::App& command, const QuantizeModelFlags& flags,
                        const Context& context) {
  const QuantizeModelOptions options = options_of(flags, context);
  check_useful(command, options);
  std::optional<ProgressBar> bar;
  std::string shown;  // the stage that the bar is of
  QuantizeModelEvents events;
  events.progress = [&](const QuantizeModelEvents::Stage& stage, const Progress& progress) {
    if (!bar || shown != stage.name) {
      shown = stage.name;
      bar.emplace(shown, context, flags.json,
                  stage.bytes ? ProgressBar::Unit::kBytes : ProgressBar::Unit::kSteps);
    }
    bar->update(progress);
  };
  events.stage_done = [&] { bar.reset(); };
  events.note = [&](const std::string& line) {
    if (bar) bar->clear();
    print_note("halftone quantize: {}\n", line);
  };
  const ModelQuantizeResult result = quantize_model(*context.engine, options, events);
  flags.json ? print_json(to_json(result)) : print_text(result);
}

void add_quantize_model(CLI::App& command, QuantizeModelFlags& o) {
  const std::string group = "With --model";
  command
      .add_option("-m,--model", o.model.model,
                  "A model folder in diffusers layout (default: the model that comes with the "
                  "program)")
      ->type_name("DIR")
      ->group(group);
  command
      .add_option_function<std::string>(
          "--calibrate",
          [&o](const std::string& file) {
            o.calibrate = true;
            o.prompts = file;
          },
          "Run these prompts, one per line (without a file: our own), and use what was seen; some "
          "are kept for the search and the certificate")
      ->type_name("[PROMPTS.txt]")
      ->expected(0, 1)
      ->default_str("")
      ->group(group);
  command.add_option("--samples", o.samples, "Pictures to calibrate on (default: one per prompt)")
      ->type_name("N")
      ->check(CLI::Range(1, 100000))
      ->group(group);
  add_sampling_options(command, o.sampling);
  command
      .add_option(
          "--budget", o.budget,
          "Choose a format for each linear: cosine=C is the least mean cosine of "
          "predictions, bytes=SIZE the most bytes of weights, auto 0.9991, or 0.9905 for nvfp4")
      ->type_name("B")
      ->group(group);
  command.add_option("--minimize", o.minimize, "What --budget spends little of")
      ->capture_default_str()
      ->type_name("W")
      ->check(CLI::IsMember({"both", "bytes", "time"}))
      ->group(group);
  command
      .add_option("--rounding", o.rounding,
                  "nearest, or compensated: later columns make up for what rounding earlier ones "
                  "did (auto: compensated with calibration)")
      ->capture_default_str()
      ->type_name("R")
      ->check(CLI::IsMember({"auto", "nearest", "compensated"}))
      ->group(group);
  command
      .add_option("--activations", o.activations,
                  "Scales of inputs: dynamic, static, or auto: static where one scale spans rows")
      ->capture_default_str()
      ->type_name("A")
      ->check(CLI::IsMember({"auto", "dynamic", "static"}))
      ->group(group);
  command
      .add_option("--split-inputs", o.split_inputs,
                  "Make one product of each value where several are put side by side, such as "
                  "attention and MLP in FLUX's single blocks, so that each has scales of its own: "
                  "off, on, or auto: where --budget measures that it is nearer to the original")
      ->capture_default_str()
      ->type_name("S")
      ->check(CLI::IsMember({"off", "on", "auto"}))
      ->group(group);
  command.add_option("--recipe", o.recipe, "Formats as this file has them, and not by --format")
      ->excludes("--split-inputs")
      ->type_name("FILE.toml")
      ->group(group);
  command.add_option("--dialect", o.dialect, "Whose layout to write")
      ->capture_default_str()
      ->type_name("D")
      ->check(CLI::IsMember({"halftone", "comfyui", "modelopt", "compressed-tensors", "torchao"}));
  command.add_option("--certify", o.certify, "Pictures to measure the certificate on; 0: none")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 10000))
      ->group(group);
  command
      .add_option("--search-points", o.search_points,
                  "Predictions that --budget measures each layer on; 0: all, three per prompt")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 10000))
      ->group(group);
  command
      .add_option("--max-memory", o.model.max_memory,
                  "The most that inputs' moments may take: where they need more, the prompts are "
                  "run several times (default: half of what is free)")
      ->type_name("SIZE")
      ->group(group);
  command.add_option("--device", o.model.device, "auto, cpu or cuda[:N]")
      ->capture_default_str()
      ->type_name("D")
      ->check(device_name())
      ->group(group);
  command
      .add_flag("--strict", o.model.strict,
                "Fail with exit code 3, and write nothing, where the budget is missed or anything "
                "would be done otherwise than asked for")
      ->group(group);
}

}  // namespace halftone::cli
