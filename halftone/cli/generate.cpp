// halftone generate: pictures from a prompt.
#include "halftone/engine/generate.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/cli/cli.h"
#include "halftone/cli/flags.h"
#include "halftone/cli/generate_offline.h"
#include "halftone/cli/generate_report.h"
#include "halftone/cli/progress_bar.h"
#include "halftone/engine/checks.h"
#include "halftone/engine/picture_text.h"
#include "halftone/io/output.h"
#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/quantize/cache_choice.h"
#include "halftone/runtime/devices.h"

namespace halftone::cli {
namespace {

namespace fs = std::filesystem;

// Letters and digits of the prompt, for the name of a file.
std::string slug(const std::string& prompt) {
  std::string out;
  for (const char c : prompt) {
    const bool keep = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (keep) {
      out += c;
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
    if (out.size() >= 48) break;
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "picture" : out;
}

// OUT.png, or OUT-1.png, OUT-2.png, ... for several.
fs::path output_name(const GenerateOptions& options, int index) {
  const fs::path base =
      options.output.empty() ? fs::path(slug(options.prompt) + ".png") : fs::path(options.output);
  if (options.count == 1 || options.output == "-") return base;
  fs::path name = base.parent_path() / base.stem();
  name += fmt::format("-{}", index + 1);
  name += base.extension();
  return name;
}

Tensor load_noise(const std::string& path) {
  const SafetensorsFile file(path);
  const TensorEntry* entry = file.find("latents");
  if (entry == nullptr && file.tensors().size() == 1) entry = &file.tensors()[0];
  if (entry == nullptr) throw Error(ErrorCode::kInvalidInput, path, "has no tensor 'latents'");
  return file.tensor(*entry);
}

GenerateRequest request_of(const GenerateOptions& options, const LoadedModel& loaded) {
  GenerateRequest request = loaded.request(options.prompt);
  request.negative = options.negative;
  std::tie(request.width, request.height) = parse_size(options.size);
  request.steps = options.steps;
  request.guidance = options.guidance;
  request.true_cfg = options.true_cfg;
  request.skip = {parse_layers(options.skip_layers, "--skip-layers"), options.skip_layer_scale};
  read_original_size(options.original_size, "--original-size", request.original);
  read_crop(options.crop, "--crop", request.original);
  request.seed = options.seed;
  if (!options.scheduler.empty()) {
    request.scheduler = with_scheduler(loaded.sampling.scheduler, options.scheduler);
  }
  request.count = options.count;
  request.batch = options.batch;
  // Until it is chosen, what is planned is for any.
  request.cache = options.cache == "auto" ? 1.0f : cache_threshold(options.cache);
  if (!options.noise.empty()) request.noise = load_noise(options.noise);
  return request;
}

ArrangeOptions arrange_options(const GenerateOptions& options) {
  const std::string& limit = options.model.max_memory;
  return {limit.empty() ? 0 : parse_bytes(limit, "--max-memory"),
          options.vae_tiles == "on"    ? TileChoice::kOn
          : options.vae_tiles == "off" ? TileChoice::kOff
                                       : TileChoice::kAuto};
}

// What is wrong with where results should go, before any work.
void check_outputs(const GenerateOptions& options) {
  if (options.output == "-" && (options.count > 1 || options.json)) {
    throw Error(ErrorCode::kUsage, "--output", "- is for one picture, and not for --json");
  }
  for (int i = 0; i < options.count; ++i) {
    const fs::path picture = output_name(options, i);
    check_output_file(picture);
    check_distinct_outputs({{"--output", picture == "-" ? fs::path() : picture},
                            {"--save-latents", options.save_latents}});
  }
  if (!options.save_latents.empty()) check_output_file(options.save_latents);
  std::vector<fs::path> inputs = inputs_of(options.model);
  inputs.emplace_back(options.noise);
  for (int i = 0; i < options.count; ++i) check_not_inputs({output_name(options, i)}, inputs);
  check_not_inputs({options.save_latents}, inputs);
  check_png_name(options.output, "--output");
}

// Writes pictures, and latents where they are asked for, one after the other.
class Results {
 public:
  Results(const GenerateOptions& options, const GenerateRequest& request, GenerateOutcome& outcome,
          const Shape& latents)
      : options_(options), request_(request), outcome_(outcome) {
    if (options.save_latents.empty()) return;
    const TensorSpec all{
        "latents", DType::kF32, {options.count, latents[1], latents[2], latents[3]}};
    latents_.emplace(options.save_latents, std::span(&all, 1), Metadata());
  }
  void add(const GeneratedPicture& picture) {
    const fs::path file = output_name(options_, picture.index);
    write_png(
        file, picture.image,
        told_picture_text(picture_text(outcome_.loaded, request_, outcome_.hash, picture.index),
                          request_, picture.reused[0]));
    outcome_.files.push_back(file);
    outcome_.reused.push_back(picture.reused);
    if (latents_) latents_->write("latents", picture.latents.bytes());
  }
  void finish() {
    if (latents_) latents_->finish();
  }

 private:
  const GenerateOptions& options_;
  const GenerateRequest& request_;
  GenerateOutcome& outcome_;
  std::optional<SafetensorsWriter> latents_;
};

// A threshold for the step cache, by pictures of calibration prompts.
void choose_cache(const GenerateOptions& options, const Context& context, GenerateRequest& request,
                  GenerateOutcome& outcome) {
  const LoadedModel& loaded = outcome.loaded;
  CacheChoiceOptions how;
  how.width = request.width;
  how.height = request.height;
  how.steps = request.steps;
  how.guidance = request.guidance;
  how.scheduler = request.scheduler.value_or(loaded.sampling.scheduler);
  how.least_ssim = options.cache_ssim;
  std::string what = fmt::format("{} {} {} {}", outcome.hash, loaded.precision.used,
                                 loaded.text_precision.used, loaded.device_info.name);
  for (const AdapterChoice& choice : loaded.adapters) {
    what += fmt::format(" {}:{}", choice.adapter->lora().report().hash, choice.strength);
  }
  // Measuring encodes some prompts and makes a picture of each, so that nothing can take turns.
  const int64_t needed = (outcome.kept.choice.chosen.turns ? outcome.kept.choice.resident.peak
                                                           : outcome.planned.peak()) +
                         cache_choice_bytes(how, loaded.model->latent_shape(how.width, how.height));
  if (outcome.kept.choice.chosen.turns || needed > outcome.kept.available) {
    how.not_measured = fmt::format(
        "measuring one takes {}, and {} are {}; a number, such as "
        "--cache 0.05, needs no measuring",
        human_bytes(needed), human_bytes(outcome.kept.available),
        outcome.kept.limited ? "allowed" : "free");
  }
  ProgressBar bar("choosing", context, options.json, ProgressBar::Unit::kSteps);
  const CacheChoice choice = halftone::choose_cache(
      *loaded.pipeline, what, how, [&](const Progress& step) { bar.update(step); });
  bar.clear();
  request.cache = choice.threshold;
  outcome.cache_told = told(choice, how);
  if (request.true_cfg > 1) outcome.cache_told += "; measured without --true-cfg";
  if (!request.skip.layers.empty()) outcome.cache_told += "; measured without --skip-layers";
}

void run_generate(GenerateOptions options, const Context& context) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  GenerateOutcome outcome;
  if (!options.size.empty()) parse_size(options.size);  // wrong ones before any work
  check_outputs(options);
  outcome.loaded = load_bare(options.model, context);
  const Sampling& defaults = outcome.loaded.sampling;
  if (options.size.empty()) options.size = fmt::format("{}x{}", defaults.width, defaults.height);
  if (options.steps == 0) options.steps = defaults.steps;
  if (options.guidance < 0) options.guidance = defaults.guidance;
  GenerateRequest request = request_of(options, outcome.loaded);
  check(request, defaults);
  outcome.kept = arrange(outcome.loaded, request, arrange_options(options));
  outcome.planned = outcome.kept.memory;
  const Model& model = *outcome.loaded.model;
  Pipeline& pipeline = *outcome.loaded.pipeline;
  std::FILE* const report = options.output == "-" ? stderr : stdout;
  if (!options.json) print_plan(report, outcome.kept, outcome.loaded);
  outcome.hash = model.hash();
  if (model.denoiser().reads_sizes()) outcome.sizes = told_by(request).sizes;
  if (options.cache == "auto") choose_cache(options, context, request, outcome);
  outcome.cache = request.cache;
  outcome.notes = adapter_notes(outcome.loaded, outcome.hash);

  Results results(options, request, outcome, model.latent_shape(request.width, request.height));
  ProgressBar bar("generating", context, options.json, ProgressBar::Unit::kSteps);
  const ProgressFn progress = [&](const Progress& step) {
    outcome.host_measured = std::max(outcome.host_measured, anonymous_memory());
    const DeviceContext* device = outcome.loaded.context.get();
    outcome.measured = device != nullptr ? device->memory().most_held : outcome.host_measured;
    bar.update(step);
  };
  try {
    outcome.seconds = generate(pipeline, request, progress,
                               [&](const GeneratedPicture& made) { results.add(made); });
    results.finish();
  } catch (const Error& error) {
    // Those that are finished stay.
    if (error.code() == ErrorCode::kCancelled && !outcome.files.empty()) {
      throw Error(ErrorCode::kCancelled, "", "interrupted; {} of {} pictures are written",
                  outcome.files.size(), options.count);
    }
    if (error.where() == "noise") {
      throw Error(error.code(), options.noise, "{}", error.message());
    }
    throw;
  }
  bar.clear();
  add_device_fallbacks(outcome.loaded, options.model.strict);
  outcome.total = std::chrono::duration<double>(Clock::now() - start).count();
  options.json ? print_json(to_json(options, outcome)) : print_summary(report, options, outcome);
}

}  // namespace

void add_cache_options(CLI::App& command, GenerateOptions& options) {
  command
      .add_option(
          "--cache", options.cache,
          "Reuse what the network's blocks added at an earlier step while the tokens after "
          "the first block have changed by less than T in sum (0.05 to 0.3 is usual); auto: "
          "the largest T that keeps to --cache-ssim")
      ->capture_default_str()
      ->type_name("T|auto|off")
      ->check([](const std::string& text) {
        if (text != "auto" && text != "off" && !finite_number(0, 1)(text).empty()) {
          return std::string("is neither auto, off nor a number from 0 to 1");
        }
        return std::string();
      });
  command
      .add_option("--cache-ssim", options.cache_ssim,
                  "With --cache auto: the least SSIM to pictures without a cache")
      ->capture_default_str()
      ->type_name("S")
      ->check(finite_number(0, 1));
}

void add_generate(CLI::App& app, const Context& context) {
  CLI::App* command = app.add_subcommand("generate", "Make pictures from a prompt");
  command->footer(
      "The same seed gives the same picture, whatever batch it is made in; picture i of --count "
      "has\n"
      "seed + i. The PNG carries prompt, seed, steps, precision and the model's hash. Examples:\n"
      "  halftone generate \"a red apple on a blue background\"\n"
      "  halftone generate --model Z-Image-Turbo \"a lighthouse at dusk\" --size 768x512\n"
      "  halftone generate --model Z-Image \"a cat\" --negative \"blurry\" --guidance 4 --steps 28 "
      "--count 4\n"
      "  halftone generate --prompts list.jsonl -o pictures --batch 4\n"
      "  mpirun -n 4 --bind-to none halftone generate --prompts list.jsonl -o pictures\n"
      "With --prompts the same command goes on where it was ended; pictures/index.jsonl lists "
      "all.\n"
      "--noise and --save-latents (safetensors, tensor 'latents' [count, C, h, w]) are for "
      "comparing\n"
      "with other implementations.");
  auto o = std::make_shared<GenerateOptions>();
  add_model_options(*command, o->model);
  command
      ->add_option("--stream-blocks", o->model.stream_blocks,
                   "Blocks that stay in the CPU's memory and are copied to the GPU in every step, "
                   "each while others compute: auto (as few as the memory asks for), off, all or a "
                   "number")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("prompt,-p,--prompt", o->prompt, "What to show")->type_name("TEXT");
  add_offline_options(*command, *o);
  command
      ->add_option_function<std::string>(
          "-n,--negative", [o](const std::string& text) { o->negative = text; },
          "What to avoid; needs --guidance")
      ->type_name("TEXT");
  command->add_option("-s,--size", o->size, "Width and height in pixels (default: the model's)")
      ->type_name("WxH");
  command->add_option("--steps", o->steps, "Denoising steps (default: the model's)")
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  command
      ->add_option(
          "-g,--guidance", o->guidance,
          "Strength of the prompt against the negative one; 0 is off (default: the model's)")
      ->type_name("G")
      ->check(finite_number(0, 100));
  command
      ->add_option("--true-cfg", o->true_cfg,
                   "The same of models that read --guidance themselves (FLUX.1 dev): above 1 each "
                   "step predicts for --negative too")
      ->type_name("G")
      ->check(finite_number(0, 100));
  add_cache_options(*command, *o);
  command
      ->add_option(
          "--skip-layers", o->skip_layers,
          "Blocks of the transformer, such as 7,8,9: the steps between 1 % and 20 % of the "
          "way are guided away from a prediction without them, too (Stable Diffusion 3)")
      ->type_name("N,N");
  command->add_option("--skip-layer-scale", o->skip_layer_scale, "How strongly")
      ->needs("--skip-layers")
      ->capture_default_str()
      ->type_name("G")
      ->check(finite_number(0, 100));
  command
      ->add_option("--original-size", o->original_size,
                   "Of the picture that this one is told to be a part of, and 0,0 or --crop where "
                   "the part begins (SDXL; default: its own size)")
      ->type_name("WxH");
  command->add_option("--crop", o->crop, "Where that part begins, from the left and the top")
      ->type_name("X,Y");
  add_scheduler_option(*command, o->scheduler);
  command->add_option("--seed", o->seed, "Seed of the first picture")
      ->capture_default_str()
      ->type_name("S")
      ->check(seed_number());
  command->add_option("-c,--count", o->count, "Pictures to make")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 10000));
  command->add_option("-b,--batch", o->batch, "Pictures made at a time")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 64));
  command
      ->add_option("--vae-tiles", o->vae_tiles,
                   "Decode in overlapping tiles of 512 pixels: on, off, or auto where the picture "
                   "does not fit otherwise")
      ->capture_default_str()
      ->type_name("T")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  command->add_option("--noise", o->noise, "Take the initial latents from this file")
      ->type_name("FILE");
  command->add_option("--save-latents", o->save_latents, "Write the final latents to this file")
      ->type_name("FILE");
  command
      ->add_option(
          "-o,--output", o->output,
          "The PNG to write; for several, -1, -2, ... is added; - is standard output; with "
          "--prompts a folder")
      ->type_name("OUT");
  command->add_flag("--json", o->json, "Print one JSON object instead of text");
  command->callback([o, command, &context] {
    if (o->cache != "auto") refuse_given(*command, {"--cache-ssim"}, "goes with --cache auto");
    check_offline_flags(*command, *o);
    o->prompts.empty() ? run_generate(*o, context) : run_offline(*o, context);
  });
}

}  // namespace halftone::cli
