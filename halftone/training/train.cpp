#include "halftone/training/train.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/io/output.h"
#include "halftone/training/apart.h"
#include "halftone/training/text_training.h"
#include "halftone/training/train_course.h"
#include "halftone/training/train_data.h"
#include "halftone/training/train_page.h"
#include "halftone/training/train_plan.h"
#include "halftone/training/train_precision.h"
#include "halftone/training/train_record.h"
#include "halftone/training/train_samples.h"
#include "halftone/training/weights_output.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// "all" and "attention" as patterns of weights.
std::vector<std::string> patterns_of(const std::vector<std::string>& targets) {
  std::vector<std::string> patterns;
  for (const std::string& target : targets) {
    if (target == "all") return {};
    if (target == "attention") {
      patterns.insert(patterns.end(), {"*attention*", "*attn*"});
    } else {
      patterns.push_back(target);
    }
  }
  return patterns;
}

class TrainRun {
 public:
  TrainRun(Engine& engine, const TrainOptions& options, const TrainSink& events)
      : engine_(engine),
        options_(options),
        processes_(options.processes != nullptr ? *options.processes : alone_),
        events_(processes_.is_first() ? events : silent_),
        checkpoints_(options.output, options.keep, options.resume) {
    options_.rules.targets = patterns_of(options.targets);
    if (processes_.size() > 1) {  // whichever of them is interrupted, all are
      options_.model.cancelled = [this, own = options.model.cancelled] {
        return processes_.stopping(own && own());
      };
      options_.stop = [this, own = options.stop] { return processes_.stopping(own && own()); };
    }
  }

  TrainResult run() {
    check();
    if (options_.resume) checkpoints_.wait_for_others(options_.stop);
    const Dataset data = find_data("data", options_.data, options_.captions);
    const Dataset prior =
        options_.prior.empty() ? Dataset{} : find_data("prior", options_.prior, options_.captions);
    const Dataset held_out = options_.held_out.data.empty()
                                 ? Dataset{}
                                 : find_data("held-out", options_.held_out.data, options_.captions);
    loaded_ = engine_.load(options_.model);
    for (const std::string& line : loaded_.fallbacks) warn(line);
    if (loaded_.context != nullptr) loaded_.context->set_deterministic(options_.deterministic);
    choose_precision(options_, loaded_, precision_before(), processes_);
    check_early();
    try {
      if (processes_.is_first()) prepare(data, prior, held_out);
      processes_.sum(0.0, options_.stop);  // the others find encoded what it has encoded
      if (!processes_.is_first()) prepare(data, prior, held_out);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCancelled) throw;
      throw Error(ErrorCode::kCancelled, "", "interrupted; what is encoded so far is kept");
    }
    make_trainer();
    plan();
    if (options_.resume) resume();
    loop();
    finish();
    return std::move(result_);
  }

 private:
  void check() const {
    const auto need = [](bool fine, const char* field, const char* why) {
      if (!fine) throw Error(ErrorCode::kUsage, field, "{}", why);
    };
    need(!options_.data.empty(), "data", "is needed: a folder of pictures");
    need(!options_.output.empty(), "output", "is needed: the file to write");
    need(options_.output.extension() == ".safetensors", "output", "is to end with .safetensors");
    need(is_valid_utf8(options_.captions.trigger), "trigger", "is not UTF-8");
    need(is_valid_utf8(options_.captions.usual), "caption", "is not UTF-8");
    check_output_file(options_.output);
    check_not_inputs({options_.output},
                     {fs::path(options_.model.path), fs::path(options_.model.base)});
  }

  void warn(const std::string& line) {
    result_.notes.push_back(line);
    events_(TrainWarning{line});
  }

  void fall_back(const std::string& line) {
    if (options_.model.strict) throw Error(ErrorCode::kFallback, "strict", "{}", line);
    warn(line);
  }
  // On a device some show only while it runs.
  void check_fallbacks() const {
    if (!options_.model.strict) return;
    for (const std::string& line : run_fallbacks(loaded_)) {
      throw Error(ErrorCode::kFallback, "strict", "{}", line);
    }
  }

  void prepare(const Dataset& data, const Dataset& prior, const Dataset& held_out) {
    TrainData made = prepare_data(options_, loaded_, data, prior, held_out, listener_);
    result_.pictures = made.pictures;
    result_.priors = made.priors;
    result_.skipped = std::move(made.skipped);
    result_.sizes = std::move(made.sizes);
    source_.data_hash = std::move(made.hash);
    examples_ = std::move(made.examples);
    held_out_ = std::move(made.held_out);
    result_.held_out_pictures = held_out_.size();
    held_out_hash_ = std::move(made.held_out_hash);
    no_caption_ = std::move(made.no_caption);
    if (processes_.is_first()) samples_ = std::move(made.samples);
  }

  // Encoders have done their work, unless they are trained.
  void make_trainer() {
    const std::shared_ptr<const Model> loaded = loaded_.model;
    auto model = options_.rules.train_text ? loaded : loaded->without_encoders();
    loaded_.pipeline.reset();
    loaded_.model = model;
    trainer_ = std::make_unique<Trainer>(model, std::move(examples_), options_.rules,
                                         std::move(no_caption_), &processes_, loaded_.cancelled);
    trainer_->hold_out(std::move(held_out_));
    renew_pipeline();
  }

  void plan() {
    const ModelMemory memory =
        plan_run(options_, loaded_, *trainer_, samples_ ? &*samples_ : nullptr);
    check_memory(loaded_, memory, options_.max_memory);
    check_room(options_, loaded_, *trainer_);
    result_.planned_bytes = memory.peak();
    for (const std::string& note : trainer_->notes()) fall_back(note);
    tell_sums();
    TrainModelLoaded& said = result_.model;
    said.path = loaded_.path;
    said.family = std::string(loaded_.model->family().name);
    said.precision = loaded_.precision;
    said.compile = loaded_.compile;
    said.device = loaded_.device;
    said.formats = loaded_.model->report().formats;
    for (const auto& kept : loaded_.model->report().quantized.kept) {
      said.kept.emplace_back(kept.weight, kept.reason);
    }
    said.mode = to_string(options_.rules.mode);
    said.parts = trainer_->parts();
    said.parameters = trainer_->parameters();
    said.planned_bytes = result_.planned_bytes;
    events_(said);
  }

  // How gradients will reach the others. (On the CPU there is one way.)
  void tell_sums() {
    const SumRoad* road = trainer_->sum_road();
    if (road == nullptr) return;
    result_.model.processes = processes_.size();
    result_.model.sums = {"auto", road->nccl ? "nccl" : "host", "native", road->why};
    if (road->nccl || loaded_.context == nullptr) return;
    warn(fmt::format("gradients are summed through the CPU's memory: {}", road->why));
  }

  ordered_json record() const { return run_record(options_, source_); }

  // A run that goes on does so as it began.
  std::string precision_before() const {
    const std::vector<Checkpoints::Found> found = checkpoints_.list();
    return options_.resume && !found.empty() ? Checkpoints::recorded(found[0].folder, "precision")
                                             : "";
  }

  void choose_backward() {
    const Choice choice = result_.model.backward = chosen_backward(options_, loaded_);
    if (options_.rules.fp8_gradients && choice.used != "fp8") {
      fall_back(fmt::format("backward: fp8 is for a base in 8 or 4 bits; {}, and so are gradients",
                            choice.why));
      if (options_.rules.fp8_weight_gradients) {
        fall_back(fmt::format("weight-gradient: fp8 is beside gradients in fp8; these are in {}",
                              choice.used));
      }
    }
    source_.gradients = choice.used;
  }

  void check_sample_size() const {
    const SampleOptions& samples = options_.samples;
    if (samples.every == 0 || samples.width == 0) return;
    try {
      loaded_.model->latent_shape(samples.width, samples.height);
    } catch (const Error& error) {
      throw Error(error.code(), "sample-size", "{}", error.message());
    }
  }

  // What can be known before pictures are encoded, which may take long.
  void check_early() {
    source_.model_hash = loaded_.model->hash();
    source_.family = std::string(loaded_.model->family().name);
    source_.precision = loaded_.precision.used;
    choose_backward();
    if (options_.rules.warmup > options_.rules.steps) {
      warn(fmt::format("warmup: is {} of {} steps, and the learning rate never at its highest",
                       options_.rules.warmup, options_.rules.steps));
    }
    check_sample_size();
    if (options_.rules.train_text) check_trains_text(*loaded_.model);
    check_targets(options_.rules);
    for (const std::string& target : options_.targets) {  // each of them, too
      TrainRules alone = options_.rules;
      alone.targets = patterns_of({target});
      check_targets(alone);
    }
    if (options_.rules.mode == TrainMode::kQat && loaded_.model->report().formats.empty()) {
      throw Error(ErrorCode::kUsage, "precision",
                  "is {}; qat trains weights for a format such as fp8, mxfp8 or nvfp4",
                  loaded_.precision.used);
    }
    if (path_exists(checkpoints_.folder()) && !is_folder(checkpoints_.folder())) {
      throw Error(ErrorCode::kIo, checkpoints_.folder().string(), "is no folder");
    }
    const std::vector<Checkpoints::Found> found = checkpoints_.list();
    if (found.empty()) return;
    if (!options_.resume) {
      warn(
          fmt::format("checkpoints of an earlier run are in {}: this one's take their place, and "
                      "they are kept as {}.old",
                      printable(checkpoints_.folder().string()),
                      printable(checkpoints_.folder().filename().string())));
      return;
    }
    if (found[0].step > options_.rules.steps) {
      throw Error(ErrorCode::kUsage, "steps", "is {}, and {} has done {} already",
                  options_.rules.steps, found[0].folder.string(), found[0].step);
    }
    try {
      Checkpoints::load(found[0].folder, record());
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUsage) throw;  // damaged ones are told of later
    }
  }

  void resume() {
    std::string damaged;
    for (const Checkpoints::Found& checkpoint : checkpoints_.list()) {
      try {
        TrainedSoFar so_far = Checkpoints::load(checkpoint.folder, record());
        trainer_->restore(so_far.state);
        result_.curve = std::move(so_far.curve);
        result_.resumed_from = saved_ = so_far.state.step;
        take_over(std::move(so_far));
        if (!damaged.empty()) {
          warn(fmt::format("{}; step {} is gone on from", damaged, result_.resumed_from));
        }
        return;
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kUsage) throw;  // another run's
        damaged = error.what();
      }
    }
    if (!damaged.empty()) {
      throw Error(ErrorCode::kInvalidInput, "resume",
                  "no checkpoint is whole ({}); without it training starts from the beginning",
                  damaged);
    }
    warn(fmt::format("there is no checkpoint in {}: training starts from the beginning",
                     printable(checkpoints_.folder().string())));
  }

  // What was told before.
  void take_over(TrainedSoFar so_far) {
    result_.cosines = std::move(so_far.cosines);
    result_.samples = std::move(so_far.samples);
    if (so_far.held_out.empty() || so_far.held_out_hash == held_out_hash_) {
      result_.held_out = std::move(so_far.held_out);
    } else {
      warn(fmt::format(
          "held-out: what the loss was measured on before step {} is something else; {}",
          result_.resumed_from,
          held_out_hash_.empty() ? "its curve ends" : "its curve begins anew"));
    }
  }

  bool adapts() const { return options_.rules.mode == TrainMode::kLora; }
  void check_targets(const TrainRules& rules) const {
    if (adapts()) {
      adapter_sites(*loaded_.model, rules);
    } else {
      trained_weights(*loaded_.model, rules);
    }
  }

  void make_samples(int64_t step) {
    if (!samples_ || (step % options_.samples.every != 0 && !trainer_->done())) return;
    const auto is_of_step = [&](const SampleMade& made) { return made.step == step; };
    const auto there = std::ranges::count_if(result_.samples, is_of_step);
    if (there == static_cast<std::ptrdiff_t>(samples_->count())) return;
    std::erase_if(result_.samples, is_of_step);
    const auto tell = [&](const SampleMade& made) {
      result_.samples.push_back(made);
      events_(made);
    };
    if (adapts()) {
      samples_->make(loaded_, trainer_->adapters(), source_.model_hash, step, tell);
      renew_pipeline();  // the programs of one adapter are of no use to the next
      return;
    }
    // As they will be stored.
    const Weights weights = stored_weights(trainer_->weights(), options_.stored);
    const std::shared_ptr<const Model> model = loaded_.model;
    loaded_.model = model->with_weights(weights);
    renew_pipeline();
    samples_->make(loaded_, source_.model_hash, step, tell);
    loaded_.model = model;
    renew_pipeline();
  }

  // Says first what the one before has had to say.
  void renew_pipeline() {
    if (loaded_.pipeline != nullptr) {
      for (const std::string& note : loaded_.pipeline->notes()) {
        if (std::ranges::count(result_.notes, note) == 0) fall_back(note);
      }
    }
    loaded_.pipeline = loaded_.make_pipeline(trainer_->arena());
    if (samples_) samples_->tell(*loaded_.pipeline);
  }

  // What is trained, as it is now, and how it is written. On a device it is fetched here.
  using WriteFn = std::function<void(const fs::path&)>;
  WriteFn result_writer() const {
    const Metadata metadata = result_metadata(options_, source_, result_.curve.size());
    if (adapts()) {
      return [this, metadata, lora = trainer_->adapters()](const fs::path& path) {
        write_lora(path, lora, options_.naming, options_.stored, metadata);
      };
    }
    return [this, metadata, weights = trainer_->weights()](const fs::path& path) {
      write_weights(path, *loaded_.model, weights, options_.stored, metadata);
    };
  }

  std::string save(bool in_haste = false) {
    if (!processes_.is_first_left()) {
      checkpoints_.go_on();
      return {};
    }
    const TrainedSoFar so_far{trainer_->state(), result_.curve,   result_.held_out,
                              held_out_hash_,    result_.cosines, result_.samples};
    const WriteFn write = result_writer();
    const fs::path path = checkpoints_.path_of(so_far.state.step);
    const auto save = [&] {
      checkpoints_.save(so_far, record(), [&](const fs::path& folder) {
        write(folder / (adapts() ? "adapter.safetensors" : "model.safetensors"));
      });
    };
    in_haste ? run_apart(save) : save();
    saved_ = so_far.state.step;
    events_(CheckpointSaved{so_far.state.step, path.string()});
    return path.string();
  }

  void loop() {
    const auto start = Clock::now();
    // What was tried and encoded before is no part of the plan.
    if (loaded_.context != nullptr) loaded_.context->forget_most_held();
    TrainCourse course(options_, loaded_, *trainer_, result_, listener_);
    try {
      // What a run that goes on was interrupted in is made up for.
      course.measure(result_.resumed_from);
      make_samples(result_.resumed_from);
      while (!trainer_->done()) {
        const auto before = Clock::now();
        const TrainStep made = trainer_->step();
        course.add(made, seconds_since(before));
        course.measure(made.step);
        if (options_.save_every > 0 && made.step % options_.save_every == 0) save();
        make_samples(made.step);
        course.measure_memory();
        check_fallbacks();
        // If one stops, all do.
        const bool stop = options_.stop && options_.stop() && !trainer_->done();
        if (processes_.sum(stop ? 1.0 : 0.0, options_.stop) > 0) {
          throw Error(ErrorCode::kCancelled, "", "interrupted");
        }
      }
    } catch (const Error& error) {
      end_early(error);
    }
    result_.seconds = seconds_since(start);
  }

  // What was reached is kept, whatever ended it.
  [[noreturn]] void end_early(const Error& error) {
    const std::string lost = processes_.lost();
    // Whichever of them cannot go on, the others are told, and the first saves.
    if (error.code() != ErrorCode::kCancelled) processes_.stopping(true);
    try {
      save_what_is_there(lost.empty() ? error : Error(ErrorCode::kCancelled, "", "{}", lost));
    } catch (const Error&) {
      processes_.give_up();
      throw;
    }
  }

  [[noreturn]] void save_what_is_there(const Error& error) {
    const auto step = static_cast<int64_t>(result_.curve.size());
    const std::string last =
        saved_ > 0 ? fmt::format("; --resume goes on from step {}", saved_) : std::string();
    const bool disk = error.code() == ErrorCode::kIo || error.code() == ErrorCode::kDiskFull;
    // (A disk that has refused one would not take a second one either.)
    if (step == 0 || step <= saved_ || disk || !processes_.is_first_left()) {
      throw Error(error.code(), error.where(), "{}{}", error.message(), last);
    }
    std::string path;
    try {
      path = save(error.code() == ErrorCode::kCancelled && was_started_by_mpirun());
    } catch (const Error& second) {
      throw Error(error.code(), error.where(), "{}; and it could not be saved: {}{}",
                  error.message(), second.what(), last);
    }
    throw Error(error.code(), error.where(),
                "{}; step {} is saved as {}, and --resume goes on from it", error.message(), step,
                path);
  }

  void finish() {
    if (processes_.is_first()) write_all();
    processes_.leave();
  }

  void write_all() {
    try {
      result_writer()(options_.output);
    } catch (const Error& error) {
      end_early(error);
    }
    if (options_.save_every > 0 && saved_ < static_cast<int64_t>(result_.curve.size())) save();
    result_.output = options_.output.string();
    for (const std::string& line : run_fallbacks(loaded_)) warn(line);
    const fs::path page = beside(options_.output, ".html");
    result_.report = page.string();
    try {
      write_file(page, train_page(result_, options_));
    } catch (const Error& error) {  // the adapter is there
      result_.report.clear();
      warn(fmt::format("no report: {}", error.what()));
    }
    const auto last = static_cast<int64_t>(result_.curve.size());
    events_(
        TrainComplete{result_.output, last,
                      recent_loss(result_.curve, std::max<size_t>(1, result_.curve.size() / 10)),
                      result_.seconds, result_.report, result_.sums});
  }

  Engine& engine_;
  TrainOptions options_;
  Collective alone_;
  Collective& processes_;
  const TrainSink silent_ = [](const TrainEvent&) {};
  const TrainSink& events_;
  const TrainListener listener_{[this](const std::string& line) { warn(line); }, events_};
  Checkpoints checkpoints_;
  LoadedModel loaded_;
  std::vector<TrainExample> examples_, held_out_;
  Condition no_caption_;
  std::optional<TrainSamples> samples_;
  TrainSource source_;
  std::string held_out_hash_;  // of what is held out; empty: nothing is
  std::unique_ptr<Trainer> trainer_;
  TrainResult result_;
  int64_t saved_ = 0;  // the step of the last checkpoint
};

}  // namespace

TrainResult train(Engine& engine, const TrainOptions& options, const TrainSink& events) {
  return TrainRun(engine, options, events).run();
}

}  // namespace halftone
