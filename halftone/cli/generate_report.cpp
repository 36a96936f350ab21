#include "halftone/cli/generate_report.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "halftone/base/text.h"
#include "halftone/cli/cli.h"
#include "halftone/engine/choice_json.h"

namespace halftone::cli {
namespace {

using nlohmann::ordered_json;

ordered_json precision_json(const GenerateOutcome& outcome) {
  ordered_json json = choice_json(outcome.loaded.precision);
  const LoadReport& report = outcome.loaded.model->report();
  json["linears"] = report.formats;
  json["kept"] = ordered_json::array();
  for (const auto& kept : report.quantized.kept) {
    json["kept"].push_back({{"weight", kept.weight}, {"reason", kept.reason}});
  }
  return json;
}

ordered_json streamed_json(const GenerateOutcome& outcome) {
  const StreamReport& streamed = outcome.loaded.model->report().streamed;
  ordered_json json = choice_json(outcome.loaded.stream_blocks);
  json["blocks"] = streamed.blocks;
  json["of"] = streamed.of;
  json["bytes_on_host"] = outcome.planned.streamed_weights;
  json["slots"] = streamed.slots;
  return json;
}

ordered_json text_precision_json(const GenerateOutcome& outcome) {
  ordered_json json = choice_json(outcome.loaded.text_precision);
  json["encoders"] = ordered_json::array();
  for (const EncoderReport& encoder : outcome.loaded.model->report().encoders) {
    ordered_json kept = ordered_json::array();
    for (const auto& [weight, reason, unsupported] : encoder.quantized.kept) {
      kept.push_back({{"weight", weight}, {"reason", reason}});
    }
    json["encoders"].push_back(
        {{"folder", encoder.folder}, {"linears", encoder.formats}, {"kept", std::move(kept)}});
  }
  return json;
}

ordered_json loras_json(const GenerateOutcome& outcome) {
  ordered_json list = ordered_json::array();
  for (const AdapterChoice& choice : outcome.loaded.adapters) {
    const LoraReport& report = choice.adapter->lora().report();
    list.push_back({{"file", report.file},
                    {"strength", choice.strength},
                    {"matched", report.matched},
                    {"unmatched", report.unmatched}});
  }
  return list;
}

void print_arrangement(std::FILE* to, const ArrangedMemory& kept) {
  if (const std::string line = kept.line(); !line.empty()) fmt::print(to, "  {}\n", line);
  std::fflush(to);
}

}  // namespace

float cache_threshold(const std::string& text) {
  return text == "off" ? 0 : std::strtof(text.c_str(), nullptr);
}

ordered_json to_json(const GenerateOptions& options, const GenerateOutcome& outcome) {
  const auto& seconds = outcome.seconds;
  ordered_json out = {
      {"model", outcome.loaded.path},
      {"family", outcome.loaded.model->family().name},
      {"model_hash", outcome.hash},
      {"prompt", options.prompt},
      {"negative", options.negative ? ordered_json(*options.negative) : ordered_json()},
      {"seed", options.seed},
      {"size", options.size},
      {"steps", options.steps},
      {"guidance", options.guidance},
      {"precision", precision_json(outcome)},
      {"text_precision", text_precision_json(outcome)},
      {"compile", choice_json(outcome.loaded.compile)},
      {"device", choice_json(outcome.loaded.device)},
      {"stream_blocks", streamed_json(outcome)},
      {"loras", loras_json(outcome)},
      {"fallbacks", outcome.loaded.fallbacks},
      {"notes", outcome.notes},
      {"seconds",
       {{"load", outcome.loaded.seconds},
        {"text", seconds.text},
        {"denoise", seconds.denoise},
        {"first_step", seconds.first_step},
        {"decode", seconds.decode},
        {"total", outcome.total}}},
      {"peak_bytes",
       {{"planned", outcome.planned.peak()},
        {"measured", outcome.measured},
        {"converted_weights", outcome.planned.owned_weights},
        {"values", outcome.planned.arena + outcome.planned.slots + outcome.planned.borders},
        {"scratch", outcome.planned.workspace + outcome.planned.library},
        {"process", outcome.planned.process},
        {"weights_in_files", outcome.planned.file_weights}}},
      {"memory", {{"plan", memory_plan_json(outcome.kept)}}}};
  if (outcome.loaded.context != nullptr) out["peak_bytes"]["on_host"] = outcome.host_measured;
  if (outcome.sizes) {
    out["original_size"] = original_size_text(*outcome.sizes);
    out["crop"] = crop_text(*outcome.sizes);
  }
  if (options.cache != "off") {
    ordered_json& cache =
        out["cache"] = {{"asked", options.cache}, {"threshold", short_number(outcome.cache)}};
    if (!outcome.cache_told.empty()) cache["why"] = outcome.cache_told;
    cache["pictures"] = ordered_json::array();
    for (const auto& [prompt, negative] : outcome.reused) {
      ordered_json one = {{"reused_steps", prompt}};
      if (!negative.empty()) one["reused_steps_of_negative"] = negative;
      cache["pictures"].push_back(std::move(one));
    }
  }
  out["images"] = ordered_json::array();
  for (const auto& file : outcome.files) out["images"].push_back(file.string());
  return out;
}

void print_plan(std::FILE* to, const ArrangedMemory& kept, const LoadedModel& loaded) {
  const ModelMemory& memory = kept.memory;
  std::string parts =
      fmt::format("values {} + scratch {}", human_bytes(memory.arena + memory.borders),
                  human_bytes(memory.workspace + memory.library));
  if (memory.slots > 0) parts += fmt::format(" + blocks {}", human_bytes(memory.slots));
  if (loaded.context != nullptr) {
    fmt::print(to, "memory: {} of {} (weights {} + {})\n", human_bytes(memory.peak()),
               loaded.device.used, human_bytes(memory.owned_weights), parts);
    if (memory.streamed_weights > 0) {
      fmt::print(to, "streamed: {} {}\n", loaded.stream_blocks.used, loaded.stream_blocks.why);
    }
    print_arrangement(to, kept);
    return;
  }
  parts += fmt::format(" + process {}", human_bytes(memory.process));
  if (memory.owned_weights > 0) {
    parts = fmt::format("converted weights {} + {}", human_bytes(memory.owned_weights), parts);
  }
  fmt::print(to, "memory: {} ({}); weights read in place from files: {}\n",
             human_bytes(memory.peak()), parts, human_bytes(memory.file_weights));
  print_arrangement(to, kept);
}

void print_summary(std::FILE* to, const GenerateOptions& options, const GenerateOutcome& outcome) {
  const auto& seconds = outcome.seconds;
  for (const auto& file : outcome.files) fmt::print(to, "{}\n", file.string());
  fmt::print(to, "  {} at {}, {} steps, guidance {}, seed {}, {} ({}) on {}\n",
             outcome.loaded.model->family().name, options.size, options.steps, options.guidance,
             options.seed, outcome.loaded.precision.used, outcome.loaded.precision.how,
             outcome.loaded.device.used);
  if (!outcome.loaded.model->report().formats.empty())
    fmt::print(to, "  {}\n", outcome.loaded.precision.why);
  if (const Choice& text = outcome.loaded.text_precision; outcome.loaded.tells_text_precision()) {
    fmt::print(to, "  text in {} ({}): {}\n", text.used, text.how, text.why);
  }
  if (!outcome.cache_told.empty()) fmt::print(to, "  {}\n", outcome.cache_told);
  for (size_t i = 0; i < outcome.reused.size() && outcome.cache > 0; ++i) {
    const std::vector<int>& steps = outcome.reused[i][0];
    fmt::print(to, "  step cache {:g}: {} of {} steps reused{}{}\n", outcome.cache, steps.size(),
               options.steps, steps.empty() ? "" : ": ", steps_text(steps));
  }
  for (const std::string& note : outcome.notes) fmt::print(to, "  note: {}\n", note);
  for (const std::string& fallback : outcome.loaded.fallbacks)
    fmt::print(to, "  fallback: {}\n", fallback);
  // The first step is told apart: it may have placed weights, and compiled.
  const int batches = (options.count + options.batch - 1) / options.batch;
  const double steps = static_cast<double>(options.steps) * batches - 1;
  const std::string rate =
      steps < 1 ? ""
                : fmt::format(", then {} steps/s",
                              three_digits(steps / (seconds.denoise - seconds.first_step + 1e-9)));
  fmt::print(to, "  load {}, text {}, denoise {} (first step {}{}), decode {}\n",
             human_seconds(outcome.loaded.seconds), human_seconds(seconds.text),
             human_seconds(seconds.denoise), human_seconds(seconds.first_step), rate,
             human_seconds(seconds.decode));
}

}  // namespace halftone::cli
