#include "halftone/cli/generate_offline.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/cli/flags.h"
#include "halftone/cli/progress_bar.h"
#include "halftone/engine/choice_json.h"
#include "halftone/engine/offline.h"

namespace halftone::cli {
namespace {

using nlohmann::ordered_json;

OfflineOptions offline_options(const GenerateOptions& options, const Context& context) {
  OfflineOptions o;
  o.model = spec_of(options.model, context);
  o.prompts = options.prompts;
  o.folder = options.output;
  o.defaults.loras = std::move(o.model.loras);
  o.defaults.negative = options.negative;
  o.defaults.scheduler = options.scheduler;
  if (!options.size.empty()) o.defaults.size = parse_size(options.size);
  o.defaults.steps = options.steps;
  o.defaults.guidance = options.guidance;
  o.defaults.true_cfg = options.true_cfg;
  o.defaults.cache = cache_threshold(options.cache);
  o.defaults.skip = {parse_layers(options.skip_layers, "--skip-layers"), options.skip_layer_scale};
  read_original_size(options.original_size, "--original-size", o.defaults.original);
  read_crop(options.crop, "--crop", o.defaults.original);
  o.defaults.seed = options.seed;
  o.defaults.count = options.count;
  o.batch = options.batch;
  o.overwrite = options.overwrite;
  o.skip_wrong = options.skip_wrong;
  o.tiles = options.vae_tiles == "on";
  const std::string& most = options.model.max_memory;
  if (!most.empty()) o.max_memory = parse_bytes(most, "--max-memory");
  return o;
}

ordered_json notes_json(const std::vector<OfflineNote>& notes, const char* name, const char* why) {
  ordered_json list = ordered_json::array();
  for (const OfflineNote& note : notes) {
    list.push_back({{"line", note.line}, {name, note.name}, {why, note.why}});
  }
  return list;
}

ordered_json offline_json(const GenerateOptions& options, const OfflineResult& result,
                          int processes) {
  const GenerateSeconds& seconds = result.seconds;
  return {{"model", result.loaded.path},
          {"family", result.loaded.model->family().name},
          {"model_hash", result.hash},
          {"prompts", options.prompts},
          {"folder", options.output},
          {"index", result.index.string()},
          {"processes", processes},
          {"lines", result.lines},
          {"pictures", result.pictures},
          {"made", result.made},
          {"kept", result.kept},
          {"made_again", notes_json(result.made_again, "file", "why")},
          {"failed", notes_json(result.failed, "id", "error")},
          {"precision", choice_json(result.loaded.precision)},
          {"text_precision", choice_json(result.loaded.text_precision)},
          {"compile", choice_json(result.loaded.compile)},
          {"device", choice_json(result.loaded.device)},
          {"fallbacks", result.fallbacks},
          {"notes", result.notes},
          {"seconds",
           {{"load", result.loaded.seconds},
            {"text", seconds.text},
            {"denoise", seconds.denoise},
            {"decode", seconds.decode},
            {"total", result.total}}}};
}

void print_offline(const GenerateOptions& options, const OfflineResult& result, int processes) {
  fmt::print("{}: {} of {} pictures made, {} were there; {}\n", printable(options.output),
             result.made, result.pictures, result.kept, printable(result.index.string()));
  constexpr size_t kMost = 10;
  for (size_t i = 0; i < std::min(kMost, result.made_again.size()); ++i) {
    const OfflineNote& note = result.made_again[i];
    fmt::print("  made again: {}: {}\n", printable(note.name), note.why);
  }
  if (result.made_again.size() > kMost) {
    fmt::print("  and {} more were made again\n", result.made_again.size() - kMost);
  }
  const LoadedModel& loaded = result.loaded;
  fmt::print("  {}, {} ({}) on {}{}\n", loaded.model->family().name, loaded.precision.used,
             loaded.precision.how, loaded.device.used,
             processes == 1 ? "" : fmt::format(", {} processes", processes));
  for (const std::string& note : result.notes) fmt::print("  note: {}\n", note);
  for (const std::string& fallback : result.fallbacks) fmt::print("  fallback: {}\n", fallback);
  fmt::print("  {} in all: load {}, text {}, denoise {}, decode {}{}\n",
             human_seconds(result.total), human_seconds(loaded.seconds),
             human_seconds(result.seconds.text), human_seconds(result.seconds.denoise),
             human_seconds(result.seconds.decode), processes == 1 ? "" : " in the first process");
}

}  // namespace

void add_offline_options(CLI::App& command, GenerateOptions& options) {
  command
      .add_option("--prompts", options.prompts,
                  "Make the pictures of all lines of this file into the folder OUT: a prompt each "
                  "(.txt), or JSON with prompt and, if they differ from the flags, id, negative, "
                  "seed, size, original_size, crop, steps, guidance, true_cfg, cache, skip_layers, "
                  "skip_layer_scale, count, loras and scheduler")
      ->type_name("FILE.jsonl|FILE.txt");
  command.add_flag("--overwrite", options.overwrite,
                   "With --prompts: make again what is there already");
  command.add_flag("--skip-wrong", options.skip_wrong,
                   "With --prompts: make the others where a line is wrong");
}

void check_offline_flags(const CLI::App& command, const GenerateOptions& options) {
  if (options.prompts.empty()) {
    refuse_given(command, {"--overwrite", "--skip-wrong"}, "goes with --prompts");
    if (command.get_option("--prompt")->count() == 0) throw CLI::RequiredError("prompt");
    return;
  }
  refuse_given(command, {"--prompt", "--noise", "--save-latents"}, "does not go with --prompts");
  if (options.cache == "auto") {
    throw Error(ErrorCode::kUsage, "--cache",
                "with --prompts a threshold is needed: 'generate --cache auto' of one prompt finds "
                "and tells it");
  }
  if (options.output.empty() || options.output == "-") {
    throw Error(ErrorCode::kUsage, "--output", "a folder is needed for the pictures of --prompts");
  }
}

void run_offline(const GenerateOptions& given, const Context& context) {
  const std::unique_ptr<Collective> processes = join_processes();
  GenerateOptions options = given;
  share_machine(*processes, options.model);
  const bool tells = processes->is_first();
  OfflineResult result;
  {
    ProgressBar bar("generating", context, options.json || !tells, ProgressBar::Unit::kSteps);
    result = generate_offline(*context.engine, offline_options(options, context), *processes,
                              [&](const Progress& step) { bar.update(step); });
    bar.clear();
  }
  if (!tells) return;
  const int count = processes->size();
  options.json ? print_json(offline_json(options, result, count))
               : print_offline(options, result, count);
  if (!result.failed.empty()) {
    const OfflineNote& first = result.failed[0];
    throw Error(ErrorCode::kInvalidInput, options.prompts,
                "{} of {} pictures could not be made (line {}: {}); the index lists them",
                result.failed.size(), result.pictures, first.line, first.why);
  }
  if (options.model.strict && !result.fallbacks.empty()) {
    throw Error(ErrorCode::kFallback, "strict", "{}", result.fallbacks[0]);
  }
}

}  // namespace halftone::cli
