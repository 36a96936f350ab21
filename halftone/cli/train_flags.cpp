#include "halftone/cli/train_flags.h"

#include "halftone/cli/flags.h"

namespace halftone::cli {
namespace {

void add_run_options(CLI::App& command, TrainFlags& o) {
  TrainRules& rules = o.train.rules;
  const std::string group = "Training";
  command.add_option("--steps", rules.steps, "Steps of the optimizer")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 10000000))
      ->group(group);
  command.add_option("--batch", rules.batch, "Pictures that are trained on at a time")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->group(group);
  command.add_option("--accumulate", rules.accumulate, "Batches for each step")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->group(group);
  command.add_option("--lr", rules.optimizer.learning_rate, "The learning rate, at its highest")
      ->capture_default_str()
      ->type_name("R")
      ->check(finite_number(0, 10))
      ->group(group);
  command
      .add_option("--schedule", o.names.schedule,
                  "Of the learning rate: constant, or cosine to zero")
      ->capture_default_str()
      ->type_name("S")
      ->check(CLI::IsMember({"constant", "cosine"}))
      ->group(group);
  command.add_option("--warmup", rules.warmup, "Steps in which the learning rate rises")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 10000000))
      ->group(group);
  command
      .add_option("--optimizer", o.names.optimizer,
                  "adamw, or adamw8bit, whose moments take a quarter of the memory")
      ->capture_default_str()
      ->type_name("O")
      ->check(CLI::IsMember({"adamw", "adamw8bit"}))
      ->group(group);
  command
      .add_option(
          "--backward", o.names.backward,
          "Gradients in bf16, or in fp8 where the base is in 8 or 4 bits; auto is fp8 where "
          "--precision auto has chosen fp8")
      ->capture_default_str()
      ->type_name("B")
      ->check(CLI::IsMember({"auto", "bf16", "fp8"}))
      ->group(group);
  command
      .add_option("--weight-gradient", o.names.weight_gradient,
                  "With full or qat: gradients of weights as products in bf16, or in fp8 beside "
                  "--backward fp8")
      ->capture_default_str()
      ->type_name("G")
      ->check(CLI::IsMember({"bf16", "fp8"}))
      ->group(group);
  command
      .add_flag(
          "--check-gradients", rules.check_gradients,
          "After a tenth of the steps, compare gradients with those of a base in bf16, layer by "
          "layer, for the memory of that base")
      ->group(group);
  command
      .add_option("--recompute", o.names.recompute,
                  "What is computed again for gradients instead of kept: none, rows (norms and "
                  "gates), or blocks, for the least memory")
      ->capture_default_str()
      ->type_name("R")
      ->check(CLI::IsMember({"none", "rows", "blocks"}))
      ->group(group);
  command.add_option("--weight-decay", rules.optimizer.weight_decay, "Of AdamW")
      ->capture_default_str()
      ->type_name("D")
      ->check(finite_number(0, 1))
      ->group(group);
  command.add_option("--clip", rules.clip, "The largest norm of a gradient; 0: any")
      ->capture_default_str()
      ->type_name("C")
      ->check(finite_number(0, 1e6))
      ->group(group);
  command
      .add_option("--ema", rules.average,
                  "Write a running mean of what is trained, which forgets this slowly: 0.99, say")
      ->type_name("D")
      ->check(finite_number(0, 0.999999))
      ->group(group);
  command
      .add_flag("--deterministic", o.train.deterministic,
                "On a GPU: the same bytes in every run, for some time and memory (the CPU's always "
                "are)")
      ->group(group);
  command
      .add_flag("--no-overlap{false}", rules.overlap,
                "With mpirun: sum gradients after the backward pass instead of beside it, to the "
                "same bits")
      ->group(group);
  command.add_option("--seed", rules.seed, "Of everything that is drawn")
      ->capture_default_str()
      ->type_name("S")
      ->check(seed_number())
      ->group(group);
}

void add_adapter_options(CLI::App& command, TrainFlags& o) {
  TrainRules& rules = o.train.rules;
  const std::string group = "What is trained";
  command
      .add_option("--mode", o.names.mode,
                  "lora: an adapter; full: the weights of the denoiser; qat: these, so that they "
                  "lose less in --precision's format")
      ->capture_default_str()
      ->type_name("M")
      ->check(CLI::IsMember({"lora", "full", "qat"}))
      ->group(group);
  command
      .add_flag("--teacher", rules.teacher,
                "With qat: taught by the model in high precision instead of by the pictures")
      ->group(group);
  command
      .add_option("--weights", o.names.weights,
                  "With full or qat, what is kept of weights: fp32, or bf16, which is rounded by "
                  "chance at every step")
      ->capture_default_str()
      ->type_name("W")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->group(group);
  command.add_option("--rank", rules.rank, "Of the adapter")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 4096))
      ->group(group);
  command
      .add_option("--alpha", o.alpha, "The adapter is multiplied by alpha / rank (default: rank)")
      ->type_name("A")
      ->check(finite_number(1e-6, 1e6))
      ->group(group);
  command
      .add_option("--dropout", rules.dropout,
                  "The share of what adapters read that is zero while they are trained")
      ->capture_default_str()
      ->type_name("P")
      ->check(finite_number(0, 0.99))
      ->group(group);
  command
      .add_option("--targets", o.train.targets,
                  "Which linears of the blocks, or which weights: all, attention, or patterns such "
                  "as '*.w2.weight'")
      ->capture_default_str()
      ->type_name("T")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  command.add_option("--naming", o.naming, "Whose names the file has: diffusers, comfyui or kohya")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::IsMember({"diffusers", "comfyui", "kohya"}))
      ->group(group);
  command.add_option("--stored", o.stored, "Numbers in the file that is written: bf16 or fp32")
      ->capture_default_str()
      ->type_name("P")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->group(group);
}

void add_data_options(CLI::App& command, TrainFlags& o) {
  TrainRules& rules = o.train.rules;
  const std::string group = "Data";
  command
      .add_option("--resolution", o.train.resolution,
                  "Pictures are brought to about this square (default: the model's)")
      ->type_name("PIXELS")
      ->check(CLI::Range(1, 65536))
      ->group(group);
  command.add_option("--caption", o.train.captions.usual, "Of pictures that have none")
      ->type_name("TEXT")
      ->group(group);
  command.add_option("--trigger", o.train.captions.trigger, "Goes before every caption")
      ->type_name("WORDS")
      ->group(group);
  command
      .add_flag("--train-text", rules.train_text,
                "Adapters of the text encoders, too, which then read captions in every step (SDXL)")
      ->group(group);
  command
      .add_option("--caption-dropout", rules.caption_dropout,
                  "The share of pictures that are shown without their caption")
      ->capture_default_str()
      ->type_name("P")
      ->check(finite_number(0, 1))
      ->group(group);
  command
      .add_option("--prior", o.prior, "Pictures of what the model is not to forget, with captions")
      ->type_name("DIR")
      ->group(group);
  command.add_option("--prior-weight", o.train.prior_weight, "Of their loss")
      ->capture_default_str()
      ->type_name("W")
      ->check(finite_number(0, 1000))
      ->group(group);
  command
      .add_option("--held-out", o.held_out,
                  "Pictures with captions that are not trained on: the loss on them is told")
      ->type_name("DIR")
      ->group(group);
  command
      .add_option("--held-out-every", o.train.held_out.every,
                  "Steps between that (default: about twenty times in a run)")
      ->type_name("N")
      ->check(CLI::Range(1, 10000000))
      ->group(group);
  command
      .add_option("--cache", o.cache,
                  "Where encoded pictures and captions are kept (default: OUT.cache)")
      ->type_name("DIR")
      ->group(group);
  command
      .add_option("--sigma-mean", rules.sigmas.mean,
                  "Strengths of noise: logistic of a gaussian with this mean (velocity models)")
      ->capture_default_str()
      ->type_name("M")
      ->check(finite_number(-10, 10))
      ->group(group);
  command.add_option("--sigma-deviation", rules.sigmas.deviation, "and this deviation")
      ->capture_default_str()
      ->type_name("D")
      ->check(finite_number(0, 10))
      ->group(group);
  command.add_option("--shift", rules.sigmas.shift, "Moves strengths towards noise")
      ->capture_default_str()
      ->type_name("S")
      ->check(finite_number(0.01, 100))
      ->group(group);
  command.add_option("--min-snr", rules.min_snr, "Min-SNR gamma, for the others; 0: off")
      ->capture_default_str()
      ->type_name("G")
      ->check(finite_number(0, 1000))
      ->group(group);
}

void add_keeping_options(CLI::App& command, TrainFlags& o) {
  const std::string group = "Keeping";
  command
      .add_option("--save-every", o.train.save_every,
                  "Steps between checkpoints; 0: only if interrupted")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 10000000))
      ->group(group);
  command.add_option("--keep", o.train.keep, "Checkpoints that stay")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 10000))
      ->group(group);
  command
      .add_flag("--resume", o.train.resume,
                "Go on from the last checkpoint in OUT.checkpoints, where there is one")
      ->group(group);
  command
      .add_option("--sample-every", o.train.samples.every,
                  "Steps between pictures of what is trained; 0: none")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 10000000))
      ->group(group);
  command
      .add_option("--sample-prompt", o.train.samples.prompts,
                  "What they show; may be given several times (default: the first captions)")
      ->type_name("TEXT")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  command
      .add_option("--sample-size", o.sample_size,
                  "Their width and height (default: a square of the resolution)")
      ->type_name("WxH")
      ->group(group);
  command.add_option("--sample-steps", o.train.samples.steps, "Their steps (default: the model's)")
      ->type_name("N")
      ->check(CLI::Range(1, 1000))
      ->group(group);
  command.add_option("--sample-seed", o.train.samples.seed, "Their seed")
      ->capture_default_str()
      ->type_name("S")
      ->check(seed_number())
      ->group(group);
  command
      .add_option("--events", o.events, "Write what happens as JSON lines; - is standard output")
      ->type_name("FILE")
      ->group(group);
}

}  // namespace

void add_train_options(CLI::App& command, TrainFlags& o) {
  add_base_options(command, o.model);
  command
      .add_option(
          "--stream-blocks", o.model.stream_blocks,
          "With lora: blocks of the base that stay in the CPU's memory and are copied to the "
          "GPU in every step, forward and backward, each while others compute: off (auto "
          "is the same here), all or a number")
      ->capture_default_str()
      ->type_name("N");
  add_run_options(command, o);
  add_adapter_options(command, o);
  add_data_options(command, o);
  add_keeping_options(command, o);
}

void check_train_mode(const CLI::App& command, TrainFlags& o) {
  if (o.train.samples.every == 0) {
    refuse_given(command, {"--sample-prompt", "--sample-size", "--sample-steps", "--sample-seed"},
                 "does nothing without --sample-every");
  }
  if (o.names.mode != "qat") refuse_given(command, {"--teacher"}, "is for --mode qat");
  if (o.names.mode == "lora") {
    refuse_given(command, {"--weights", "--weight-gradient"}, "is for --mode full or qat");
    return;
  }
  refuse_given(command,
               {"--rank", "--alpha", "--naming", "--dropout", "--stream-blocks", "--train-text"},
               "is for --mode lora");
  if (command.count("--lr") == 0) {
    o.train.rules.optimizer.learning_rate = usual_learning_rate(TrainMode::kFull);
  }
}

TrainOptions train_options(const TrainFlags& flags, const Context& context) {
  TrainOptions options = flags.train;
  options.model = spec_of(flags.model, context);
  options.data = flags.data;
  options.output = flags.output;
  options.prior = flags.prior;
  options.held_out.data = flags.held_out;
  options.cache = flags.cache;
  TrainRules& rules = options.rules;
  rules.alpha = flags.alpha > 0 ? flags.alpha : static_cast<float>(rules.rank);
  set_rules(flags.names, options);
  options.naming = flags.naming == "comfyui" ? LoraNaming::kComfyUi
                   : flags.naming == "kohya" ? LoraNaming::kKohya
                                             : LoraNaming::kDiffusers;
  options.stored = flags.stored == "fp32" ? DType::kF32 : DType::kBF16;
  if (!flags.model.max_memory.empty()) {
    options.max_memory = parse_bytes(flags.model.max_memory, "--max-memory");
  }
  if (!flags.sample_size.empty()) {
    std::tie(options.samples.width, options.samples.height) =
        parse_size(flags.sample_size, "--sample-size");
  }
  if (flags.prior.empty() && flags.train.prior_weight != 1) {
    throw Error(ErrorCode::kUsage, "--prior-weight", "does nothing without --prior");
  }
  if (flags.held_out.empty() && flags.train.held_out.every > 0) {
    throw Error(ErrorCode::kUsage, "--held-out-every", "does nothing without --held-out");
  }
  options.stop = context.interrupted;
  options.processes = flags.processes.get();
  return options;
}

}  // namespace halftone::cli
