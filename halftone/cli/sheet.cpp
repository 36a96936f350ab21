// halftone sheet: prompts across, precisions down, on one picture, with what each precision costs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/cli/cli.h"
#include "halftone/cli/flags.h"
#include "halftone/cli/model_options.h"
#include "halftone/cli/progress_bar.h"
#include "halftone/io/output.h"
#include "halftone/io/picture.h"
#include "halftone/io/png.h"
#include "halftone/quantize/metrics.h"

namespace halftone::cli {
namespace {

using nlohmann::ordered_json;

struct SheetFlags {
  ModelOptions model;
  std::vector<std::string> precisions = {"bf16", "fp8", "mxfp8", "nvfp4"}, prompts;
  SamplingOptions sampling;
  std::string file, output = "sheet.png";
  bool before = false, json = false;
};

constexpr Color kPaper{250, 250, 248}, kInk{32, 32, 32}, kFaint{120, 120, 120};
constexpr int64_t kGap = 12;

std::vector<std::string> read_prompts(const SheetFlags& options) {
  std::vector<std::string> prompts = gather_prompts(options.prompts, options.file);
  if (prompts.empty()) {
    throw Error(ErrorCode::kUsage, "prompts", "none were given: as arguments or with --file");
  }
  return prompts;
}

// One precision: its pictures, and what they cost beside the first precision's.
struct Column {
  std::string precision, title;
  std::vector<Tensor> images, latents;
  double seconds = 0;  // per picture
  int64_t weight_bytes = 0;
  double ssim = 1, cosine = 1;  // means over prompts, against the first column
  std::vector<std::string> fallbacks;
};

Column make_column(const SheetFlags& options, const std::string& precision,
                   const std::vector<std::string>& prompts, const Context& context,
                   const ProgressFn& progress) {
  ModelOptions how = options.model;
  how.precision = precision;
  LoadedModel loaded = load(how, context);
  const Sampling sampling = sampling_of(options.sampling, loaded.sampling);
  GenerateRequest request = loaded.request("");
  request.scheduler = sampling.scheduler;
  request.width = sampling.width;
  request.height = sampling.height;
  request.steps = sampling.steps;
  request.guidance = sampling.guidance;
  request.seed = options.sampling.seed;
  Column column;
  column.precision = column.title = loaded.precision.used;
  for (const std::string& prompt : prompts) {
    request.prompt = prompt;
    const ModelMemory memory = plan_generate(*loaded.pipeline, request);
    check_memory(loaded, memory, how.max_memory);
    column.weight_bytes = memory.file_weights + memory.owned_weights;
    const auto start = std::chrono::steady_clock::now();
    GenerateResult result = generate(*loaded.pipeline, request, progress);
    column.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    column.images.push_back(result.images[0]);
    column.latents.push_back(result.latents);
  }
  column.seconds /= static_cast<double>(prompts.size());
  add_device_fallbacks(loaded, how.strict);
  column.fallbacks = loaded.fallbacks;
  return column;
}

void compare(Column& column, const Column& reference) {
  column.ssim = column.cosine = 0;
  const auto count = static_cast<double>(column.images.size());
  for (size_t i = 0; i < column.images.size(); ++i) {
    column.ssim += ssim(column.images[i], reference.images[i]) / count;
    column.cosine +=
        cosine(column.latents[i].as<float>(), reference.latents[i].as<float>()) / count;
  }
}

// Prompts run across the sheet and precisions down it, so that columns compare.
Picture draw(const std::vector<Column>& columns, const std::vector<std::string>& prompts) {
  const int64_t width = columns[0].images[0].shape()[2], height = columns[0].images[0].shape()[1];
  const int64_t label = 160, cell = width + kGap, row = height + kGap;
  const auto across = static_cast<int64_t>(prompts.size());
  const auto down = static_cast<int64_t>(columns.size());
  // Prompts take up to three lines above their column.
  constexpr int64_t kLines = 3;
  const int64_t top = kGap + kLines * kTextHeight + kGap / 2;
  Picture sheet(label + across * cell + kGap, top + down * row, kPaper);
  for (int64_t i = 0; i < across; ++i) {
    std::string rest = prompts[i];
    for (int64_t line = 0; line < kLines && !rest.empty(); ++line) {
      size_t end = rest.size();
      while (end > 0 && line + 1 < kLines && text_width(rest.substr(0, end)) > width) {
        end = end == 0 ? 0 : rest.find_last_of(' ', end - 1);
        if (end == std::string::npos) end = 0;
      }
      if (end == 0) end = rest.size();
      sheet.draw_text(fit_text(rest.substr(0, end), width), label + i * cell,
                      kGap + line * kTextHeight, kInk);
      rest = end < rest.size() ? rest.substr(end + 1) : "";
    }
  }
  for (int64_t c = 0; c < down; ++c) {
    const Column& column = columns[c];
    const int64_t y = top + c * row;
    std::vector<std::string> lines = {fmt::format("{} per picture", human_seconds(column.seconds)),
                                      fmt::format("weights {}", human_bytes(column.weight_bytes))};
    if (c > 0) {
      lines.push_back(fmt::format("SSIM {:.4f}", column.ssim));
      lines.push_back(fmt::format("cosine {:.5f}", column.cosine));
    }
    sheet.draw_text(column.title, kGap, y, kInk);
    for (size_t i = 0; i < lines.size(); ++i) {
      sheet.draw_text(lines[i], kGap, y + static_cast<int64_t>(i + 1) * (kTextHeight + 4), kFaint);
    }
    for (int64_t i = 0; i < across; ++i) {
      sheet.draw(Picture::from(column.images[i]), label + i * cell, y);
    }
  }
  return sheet;
}

void run_sheet(const SheetFlags& options, const Context& context) {
  check_output_file(options.output);
  auto inputs = inputs_of(options.model);
  inputs.emplace_back(options.file);
  check_not_inputs({options.output}, inputs);
  check_png_name(options.output, "--output");
  if (options.before && options.model.loras.empty()) {
    throw Error(ErrorCode::kUsage, "--before", "is what an adapter is shown beside: give --lora");
  }
  const std::vector<std::string> prompts = read_prompts(options);
  std::vector<Column> columns;
  ProgressBar bar("drawing", context, options.json, ProgressBar::Unit::kSteps);
  const auto pictures =
      static_cast<int64_t>(prompts.size() * (options.precisions.size() + (options.before ? 1 : 0)));
  int64_t done = 0;
  const ProgressFn progress = [&](const Progress& step) {
    bar.update({step.item, done, pictures});
    if (step.done == step.total) ++done;
  };
  if (options.before) {
    SheetFlags plain = options;
    plain.model.loras.clear();
    columns.push_back(make_column(plain, options.precisions[0], prompts, context, progress));
    columns.back().title += ", before";
  }
  for (const std::string& precision : options.precisions) {
    columns.push_back(make_column(options, precision, prompts, context, progress));
    if (columns.size() > 1) compare(columns.back(), columns[0]);
  }
  bar.clear();
  draw(columns, prompts)
      .write(options.output, {{"Software", std::string("halftone ") + version()}});
  if (options.json) {
    ordered_json rows = ordered_json::array();
    for (const Column& column : columns) {
      rows.push_back({{"precision", column.precision},
                      {"before", column.title != column.precision},
                      {"seconds_per_picture", column.seconds},
                      {"weight_bytes", column.weight_bytes},
                      {"ssim", column.ssim},
                      {"latent_cosine", column.cosine},
                      {"fallbacks", column.fallbacks}});
    }
    print_json({{"sheet", options.output}, {"prompts", prompts}, {"precisions", rows}});
    return;
  }
  fmt::print("{:<16} {:>12} {:>12} {:>8} {:>9}\n", "precision", "per picture", "weights", "SSIM",
             "cosine");
  for (const Column& column : columns) {
    fmt::print("{:<16} {:>12} {:>12} {:>8.4f} {:>9.5f}\n", column.title,
               human_seconds(column.seconds), human_bytes(column.weight_bytes), column.ssim,
               column.cosine);
    for (const std::string& line : column.fallbacks) fmt::print("  fallback: {}\n", line);
  }
  fmt::print("{}\n", options.output);
}

}  // namespace

void add_sheet(CLI::App& app, const Context& context) {
  CLI::App* command =
      app.add_subcommand("sheet", "Draw prompts in several precisions on one picture");
  command->footer(
      "SSIM of the pictures and cosine of the latents are against the first precision, means over "
      "the\nprompts. Example:\n"
      "  halftone sheet \"a red apple\" \"a cat next to a pizza\" --precisions bf16,fp8,nvfp4");
  auto o = std::make_shared<SheetFlags>();
  command->add_option("prompts", o->prompts, "What to show, one prompt each")->type_name("TEXT...");
  command->add_option("--file", o->file, "Read prompts from this file, one per line")
      ->type_name("FILE");
  command->add_option("--precisions", o->precisions, "Precisions, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("P,...")
      ->check(precision_name());
  add_model_options(*command, o->model);
  command->remove_option(command->get_option("--precision"));
  add_sampling_options(*command, o->sampling);
  command->add_option("-o,--output", o->output, "The PNG to write")
      ->capture_default_str()
      ->type_name("OUT.png");
  command->add_flag("--before", o->before, "With --lora: first a row without it");
  command->add_flag("--json", o->json, "Print one JSON object instead of text");
  command->callback([o, &context] { run_sheet(*o, context); });
}

}  // namespace halftone::cli
