// halftone train: an adapter from a folder of pictures.
#include "halftone/training/train.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/cli/config_file.h"
#include "halftone/cli/flags.h"
#include "halftone/cli/model_options.h"
#include "halftone/cli/train_events.h"
#include "halftone/cli/train_flags.h"
#include "halftone/cli/train_screen.h"
#include "halftone/io/output.h"
#include "halftone/runtime/devices.h"

namespace halftone::cli {
namespace {

// Lines of JSON, each there as soon as it happened.
class EventLog {
 public:
  EventLog(const std::string& path, bool go_on) {
    if (path.empty()) return;
    file_ = path == "-" ? stdout : std::fopen(path.c_str(), go_on ? "a" : "w");
    if (file_ == nullptr) {
      throw Error(ErrorCode::kIo, "--events", "'{}': {}", printable(path), std::strerror(errno));
    }
  }
  ~EventLog() {
    if (file_ != nullptr && file_ != stdout) std::fclose(file_);
  }
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void write(const nlohmann::ordered_json& event) {
    if (file_ == nullptr) return;
    const std::string line = json_text(event) + "\n";
    if (std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fflush(file_) == 0) {
      return;
    }
    if (!lost_) {
      print_note("halftone train: --events: {}; some are lost\n", std::strerror(errno));
    }
    lost_ = true;
    std::clearerr(file_);
  }

 private:
  std::FILE* file_ = nullptr;
  bool lost_ = false;
};

std::string counted(int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// The command that shows what came of it, on the model that it was trained on.
std::string next_command(const TrainResult& r, const ModelOptions& asked) {
  const std::string output = printable(r.output, 1000);
  if (r.model.mode != "lora") {
    return fmt::format("halftone generate --model {} --base {} \"...\"", output,
                       printable(asked.base.empty() ? r.model.path : asked.base, 1000));
  }
  std::string model;
  if (!asked.model.empty()) model += " --model " + printable(asked.model, 1000);
  if (!asked.base.empty()) model += " --base " + printable(asked.base, 1000);
  return fmt::format("halftone generate{} --lora {} \"...\"", model, output);
}

void print_summary(const TrainResult& r, int64_t steps, const ModelOptions& asked) {
  const double first = r.curve.empty() ? 0 : r.curve.front().loss;
  fmt::print("{}: {} on {} in {}{}\n", printable(r.output), counted(steps, "step"),
             counted(static_cast<int64_t>(r.pictures), "picture"), human_seconds(r.seconds),
             r.samples_per_second > 0
                 ? fmt::format(", {} pictures/s", three_digits(r.samples_per_second))
                 : "");
  double last = 0;
  const size_t tail = std::max<size_t>(1, r.curve.size() / 10);
  for (size_t i = r.curve.size() - tail; i < r.curve.size(); ++i) last += r.curve[i].loss;
  std::vector<double> losses;
  for (const TrainStep& step : r.curve) losses.push_back(step.loss);
  fmt::print("loss {:.4f} -> {:.4f}  {}\n", first, last / static_cast<double>(tail),
             sparkline(losses, 32));
  if (!r.held_out.empty()) {
    losses.clear();
    for (const HeldOutLoss& at : r.held_out) losses.push_back(at.loss);
    fmt::print("held out {:.4f} -> {:.4f}  {}\n", losses.front(), losses.back(),
               sparkline(losses, 32));
  }
  if (!r.cosines.empty()) {
    const auto worst = std::ranges::min_element(r.cosines, {}, &Trainer::GradientCosine::cosine);
    fmt::print(
        "gradients beside those of a base in high precision: cosine {:.5f} at worst, of {}\n",
        worst->cosine, printable(worst->weight));
  }
  const bool adapts = r.model.mode == "lora";
  fmt::print("{} in {}, gradients in {} on {}, {} of {} values; memory {} of {} planned\n",
             adapts ? "base" : "computed", r.model.precision.used, r.model.backward.used,
             r.model.device.used, counted(r.model.parts, adapts ? "adapter" : "weight"),
             r.model.parameters, human_bytes(r.peak_bytes), human_bytes(r.planned_bytes));
  if (r.sums) {
    fmt::print("gradients of {} summed in {}, {} of it waited for\n",
               fmt::format("{} processes", r.model.processes), human_seconds(r.sums->summing),
               human_seconds(r.sums->waited));
  }
  if (r.resumed_from > 0) fmt::print("resumed from step {}\n", r.resumed_from);
  for (const SkippedFile& skipped : r.skipped) {
    fmt::print("skipped {}: {}\n", printable(skipped.file), skipped.why);
  }
  if (!r.report.empty()) fmt::print("report: {}\n", printable(r.report));
  fmt::print("try it: {}\n", next_command(r, asked));
}

// Where the log goes is checked as where the adapter goes.
void check_events(const TrainFlags& flags) {
  if (flags.events.empty() || flags.events == "-") return;
  namespace fs = std::filesystem;
  check_output_file(flags.events);
  check_distinct_outputs({{"--output", flags.output}, {"--events", flags.events}});
  check_not_inputs({flags.events}, inputs_of(flags.model));
  const fs::path log = fs::absolute(flags.events).lexically_normal();
  for (const std::string& folder : {flags.data, flags.prior, flags.held_out}) {
    if (folder.empty()) continue;
    const fs::path from = log.lexically_relative(fs::absolute(folder).lexically_normal());
    if (!from.empty() && *from.begin() != "..") {
      throw Error(ErrorCode::kUsage, "--events", "'{}' would lie among the pictures",
                  printable(flags.events));
    }
  }
}

void run_train(TrainFlags& flags, const Context& context) {
  flags.processes = join_processes();
  share_machine(*flags.processes, flags.model);
  const bool tells = flags.processes->is_first();
  const TrainOptions options = train_options(flags, context);
  check_events(flags);
  EventLog log(tells ? flags.events : "", flags.train.resume);
  const bool quiet = flags.events == "-" || !tells;
  TrainScreen screen(context, quiet);
  if (context.watch_interrupts) context.watch_interrupts(true);
  try {
    const TrainResult result = train(*context.engine, options, [&](const TrainEvent& event) {
      log.write(event_json(event));
      screen.show(event);
    });
    screen.finish();
    if (context.watch_interrupts) context.watch_interrupts(false);
    if (!quiet) print_summary(result, static_cast<int64_t>(result.curve.size()), flags.model);
  } catch (const Error& error) {
    log.write(event_json(error));
    if (context.watch_interrupts) context.watch_interrupts(false);
    if (flags.processes->is_first_left() || error.code() != ErrorCode::kCancelled) throw;
    throw Error(ErrorCode::kCancelled, "", "process {} of {} was interrupted, too",
                flags.processes->rank() + 1, flags.processes->size());
  }
}

}  // namespace

void add_train(CLI::App& app, const Context& context) {
  CLI::App* command =
      app.add_subcommand("train", "Train an adapter (LoRA), or the model itself, on pictures");
  command->footer(
      "DIR holds pictures (.png, .jpg, .webp) with a caption each: NAME.txt beside NAME.png, or a\n"
      ".jsonl whose lines have \"file_name\" and \"text\". Pictures of any shape are cropped to "
      "one of a\n"
      "few sizes. Ctrl-C saves a checkpoint, and --resume goes on from it, to the same bytes.\n"
      "Beside OUT lie OUT.checkpoints, OUT.samples, OUT.cache and a report, OUT.html. Examples:\n"
      "  halftone train --data pictures -o style.safetensors --steps 500\n"
      "  halftone train --data pictures --model Z-Image -o style.safetensors --precision fp8 \\\n"
      "    --rank 32 --batch 4 --save-every 100 --sample-every 100\n"
      "  halftone generate --lora style.safetensors \"a lighthouse\"\n"
      "  halftone train --data pictures --model Z-Image --mode full -o tuned.safetensors\n"
      "  halftone generate --model tuned.safetensors --base Z-Image \"a lighthouse\"");
  auto o = std::make_shared<TrainFlags>();
  command->add_option("--data", o->data, "A folder of pictures and captions")->type_name("DIR");
  command->add_option("-o,--output", o->output, "The adapter, or the denoiser, to write")
      ->type_name("OUT.safetensors");
  command->add_option("--config", o->config, "Flags from this file; those of the command line win")
      ->type_name("FILE.toml");
  add_train_options(*command, *o);
  command->callback([o, command, &context] {
    if (!o->config.empty()) apply_config(*command, o->config);
    check_train_mode(*command, *o);
    run_train(*o, context);
  });
}

}  // namespace halftone::cli
