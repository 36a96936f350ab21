#include "halftone/quantize/quantize_model.h"

#include <algorithm>
#include <chrono>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/io/model_hash.h"
#include "halftone/quantize/calibrate_passes.h"
#include "halftone/quantize/model_certificate.h"
#include "halftone/quantize/model_checks.h"
#include "halftone/quantize/prompt_plan.h"
#include "halftone/quantize/split_inputs.h"
#include "halftone/quantize/write_model.h"
#include "halftone/runtime/devices.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

bool asks_to_compensate(const QuantizeModelOptions& o) {
  return o.rounding == Rounding::kCompensated ||
         (!o.rounding && o.recipe && o.recipe->rounding == Rounding::kCompensated);
}

class ModelQuantizer {
 public:
  ModelQuantizer(Engine& engine, const QuantizeModelOptions& options,
                 const QuantizeModelEvents& events)
      : engine_(engine), options_(options), events_(events) {}

  ModelQuantizeResult run() {
    const auto start = std::chrono::steady_clock::now();
    check(options_);
    threads_ = start_threads(options_.model.threads);
    choose_way();
    load_original();
    plan_ = plan_prompts(options_, original_.sampling);
    plan_.calibration.threads = threads_;
    if (!plan_.note.empty()) note(plan_.note);
    if (!options_.recipe) check_selects(base_recipe());
    choose_cuts();
    check_selects(base_recipe());
    check_rules();
    if (options_.budget) {
      check_budget(*original_.model, base_recipe(), candidates(), *options_.budget);
    }
    choose_rounding();
    try {
      if (calibrates_) run_calibration();
      choose();
      if (calibrates_ && options_.certify > 0) certify();
      hold_to_budget();
      write();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCancelled || !path_exists(partial_)) throw;
      throw Error(ErrorCode::kCancelled, "", "interrupted; the next run goes on from '{}'",
                  printable(partial_.string()));
    }
    result_.model = original_.path;
    result_.output = options_.output.string();
    result_.points = spread_points(calibration_.points, options_.search_points).size();
    result_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(result_);
  }

 private:
  void note(const std::string& line) const {
    if (events_.note) events_.note(line);
  }
  ProgressFn stage(const std::string& name, bool bytes = false) const {
    return [this, name, bytes](const Progress& p) {
      if (options_.model.cancelled && options_.model.cancelled()) {
        throw Error(ErrorCode::kCancelled, "", "interrupted");
      }
      if (events_.progress) events_.progress({name, bytes}, p);
    };
  }
  void stage_done() const {
    if (events_.stage_done) events_.stage_done();
  }

  // What follows from the options alone.
  void choose_way() {
    const bool again = options_.recipe.has_value();
    format_ = again ? options_.recipe->recipe.format : *options_.format;
    calibrates_ = calibrates(options_);
    const bool usual = calibrates_ && !options_.rounding && !again;
    rounding_ = (usual && format_.tile_rows == 1) || asks_to_compensate(options_)
                    ? Rounding::kCompensated
                    : Rounding::kNearest;
  }

  LoadedModel load(const std::string& precision, const std::string& compile) const {
    ModelSpec how = options_.model;
    how.precision = precision;
    how.compile = compile;
    how.cut_inputs = result_.cuts;
    return engine_.load(how);
  }

  // Products that are made in parts, after which the model is one that has them so.
  void choose_cuts() {
    if (options_.recipe) {  // its rules name the parts
      result_.cuts = recipe_cuts(*original_.model, *options_.recipe, options_.recipe_name);
    } else if (options_.split_inputs != SplitInputs::kOff) {
      const InputCuts can = splittable(*original_.model, base_recipe());
      if (options_.split_inputs == SplitInputs::kAuto) {
        result_.cuts = better_cuts(can);
      } else if (can.empty()) {
        throw Error(ErrorCode::kUsage, "split_inputs",
                    "no linear of {} that is quantized reads several values side by side",
                    original_.model->family().title);
      } else {
        result_.cuts = names_of(can);
      }
    }
    if (!result_.cuts.empty()) original_ = load("fp32", "off");
  }

  std::vector<std::string> better_cuts(const InputCuts& can) {
    if (can.empty()) return {};
    const LoadedModel whole = load("fp32", "on");
    result_.cuts = names_of(can);
    const LoadedModel cut = load("fp32", "on");
    const QuantizeRecipe base = base_recipe();
    const auto told = [this](const std::string& name) { return stage(name); };
    auto better = better_in_parts({*original_.pipeline, *whole.pipeline, *cut.pipeline, base,
                                   scheduler(), plan_.calibration, options_.search_points},
                                  can, told);
    stage_done();
    return better;
  }

  static std::vector<std::string> names_of(const InputCuts& cuts) {
    std::vector<std::string> names;
    for (const auto& [weight, widths] : cuts) names.push_back(weight);
    return names;
  }

  // In full precision, so that what is measured is the formats' doing alone.
  void load_original() {
    original_ = load("fp32", "off");
    check_apart(options_.output, original_.path);  // the model that ships has no other name before
    if (original_.model->report().stored) {
      throw Error(ErrorCode::kInvalidInput, original_.path,
                  "is quantized already; quantize the original");
    }
    result_.hash = original_.model->hash();
    const auto& given = options_.recipe;
    if (given && given->family != original_.model->family().name) {
      throw Error(ErrorCode::kInvalidInput, options_.recipe_name, "is a recipe for {}, not for {}",
                  printable(given->family), original_.model->family().name);
    }
  }

  // That of the user or of the recipe, or the model's own.
  SchedulerConfig scheduler() const {
    SamplingChoice choice;
    choice.scheduler = scheduler_name();
    return sampling_of(choice, original_.sampling).scheduler;
  }
  std::string scheduler_name() const {
    const bool again = calibrates_as_before(options_) && options_.sampling.scheduler.empty();
    return again ? options_.recipe->calibrated->scheduler : options_.sampling.scheduler;
  }

  // Weights that the moments are for, in every format that they may be wanted in.
  RoundedLayout rounded_layout() const {
    RoundedLayout layout{fingerprint(), {}};
    for (const auto& linear : original_.model->plan_recipe(base_recipe()).converted) {
      if (!linear.format.quantized()) continue;
      layout.weights[linear.weight] = {
          linear.shape, options_.budget ? considered() : std::vector<Format>{linear.format}};
    }
    return layout;
  }

  // Moments of inputs take the square of their width: as many passes as keep to the memory.
  void choose_rounding() {
    rounder_.emplace(*original_.model, options_.output, threads_);
    if (rounding_ != Rounding::kCompensated) return;
    const std::string not_used = rounder_->begin(rounded_layout());
    if (!not_used.empty()) note(not_used + "; its weights are rounded anew");
    const std::vector<MomentGroup> groups = rounder_->left();
    const int64_t most = options_.max_memory > 0 ? options_.max_memory : available_memory() / 2;
    if (const auto passes = plan_passes(groups, most)) {
      passes_ = *passes;
      return;
    }
    rounding_ = Rounding::kNearest;
    rounder_.emplace(*original_.model, options_.output, threads_);
    int64_t needed = 0;
    for (const MomentGroup& group : groups) {
      needed = std::max(needed, moment_bytes({&group, 1}));
    }
    const std::string why =
        fmt::format("weights are rounded to nearest, because compensating would take {} of memory",
                    human_bytes(needed));
    if (options_.model.strict) throw Error(ErrorCode::kFallback, "strict", "{}", why);
    note("fallback: " + why);
  }

  // What is kept of an interrupted run belongs to this.
  std::string fingerprint() const {
    const CalibrationOptions& how = plan_.calibration;
    return text_hash(fmt::format(
        "{} {} {} {} {} {} {} {} {} {} {}", result_.hash, original_.model->parts().settings_hash,
        fmt::join(result_.cuts, "\n"), fmt::join(how.prompts, "\n"), fmt::join(how.held_out, "\n"),
        how.first_seed, how.width, how.height, how.steps, how.guidance, scheduler_name()));
  }

  void run_calibration() {
    partial_ = beside_output("calibration");
    const auto told = [this](const std::string& name) { return stage(name); };
    calibration_ = calibrate({*original_.pipeline, scheduler(), plan_.calibration, partial_,
                              fingerprint(), passes_, *rounder_},
                             told);
    stage_done();
    if (!calibration_.not_resumed.empty()) {
      note(calibration_.not_resumed + "; calibration was begun anew");
    }
  }

  // Where something is kept until the output is complete.
  fs::path beside_output(const char* what) const {
    fs::path path = options_.output;
    path += fmt::format(".{}.safetensors", what);
    return path;
  }

  QuantizeRecipe base_recipe() const {
    QuantizeRecipe base =
        options_.recipe ? options_.recipe->recipe : original_.model->denoiser().recipe(format_);
    for (const std::string& pattern : options_.exclude) {
      base.keep.insert(base.keep.begin(), {pattern, "excluded"});
    }
    if (!options_.include.empty()) base.include = options_.include;
    if (options_.recipe || base.include.empty()) return base;
    for (const auto& [weight, widths] : original_.model->cuts()) {  // selected as a whole
      for (size_t i = 0; i < widths.size(); ++i) {
        const std::string part = cut_name(weight, i);
        const auto matches = [&](const std::string& pattern) { return glob_match(pattern, part); };
        if (std::ranges::none_of(base.include, matches)) base.include.push_back(part);
      }
    }
    return base;
  }

  // An Error that names what leaves nothing to quantize.
  void check_selects(const QuantizeRecipe& recipe) const {
    try {
      original_.model->plan_recipe(recipe);
    } catch (const Error& error) {
      if (error.where() != recipe.format.name) throw;
      throw Error(error.code(),
                  !result_.not_finite.empty() ? original_.path
                  : options_.recipe           ? options_.recipe_name
                  : !options_.exclude.empty() ? "exclude"
                  : !options_.include.empty() ? "include"
                                              : original_.path,
                  "{}", error.message());
    }
  }

  // A rule for a linear that is not there, or that is in parts by now, would do nothing.
  void check_rules() const {
    if (!options_.recipe) return;
    const std::vector<LinearInfo> linears = original_.model->linears();
    for (const QuantizeRecipe::Rule& rule : options_.recipe->recipe.rules) {
      const bool known = std::ranges::any_of(
          linears, [&](const LinearInfo& of) { return glob_match(rule.pattern, of.weight); });
      if (known) continue;
      throw Error(ErrorCode::kInvalidInput, options_.recipe_name,
                  "[[layer]] '{}' matches no linear{}", printable(rule.pattern),
                  result_.cuts.empty() ? "" : " (one that is cut is named by its parts)");
    }
  }

  // The recipe, before or after a search.
  void choose() {
    QuantizeRecipe base = base_recipe();
    if (calibrates_) {
      for (const auto& [weight, range] : calibration_.inputs) {
        if (!range.finite()) {
          base.keep.push_back({weight, "its input is not finite"});
          result_.not_finite.push_back(weight);
        }
      }
      if (!result_.not_finite.empty()) check_selects(base);
    }
    result_.recipe = base;
    add_scales();
    if (options_.budget) search();
  }

  // Static scales, where they were asked for or the format has no other way that is cheap: a scale
  // that spans rows is otherwise taken from each picture.
  void add_scales() {
    const InputScales asked = options_.activations;
    if (!calibrates_ || asked == InputScales::kDynamic || options_.recipe) return;
    for (const auto& [weight, range] : calibration_.inputs) {
      if (!range.finite()) continue;
      const bool spans_rows = format_.span == ScaleSpan::kTensor || format_.global_scale;
      if (format_.scale == ScaleType::kE8M0 || (!spans_rows && asked != InputScales::kStatic)) {
        continue;
      }
      result_.recipe.input_scales[weight] = static_scale_for(format_, range.largest());
    }
  }

  void search() {
    // Without scales: they are those of the first format alone, and added to what it is chosen for.
    first_scales_ = std::exchange(result_.recipe.input_scales, {});
    const QuantizeRecipe base = result_.recipe;
    LoadedModel model = load("fp32", "on");  // compiled: many predictions are made
    result_.found = search_formats(search_input(*model.pipeline, base), stage("measuring layers"));
    stage_done();
    if (!result_.found->not_resumed.empty()) {
      note(result_.found->not_resumed + "; the search was begun anew");
    }
    take_found(base);
  }

  // What a search tries besides high precision.
  std::vector<Format> considered() const {
    std::vector<Format> tried = {format_};
    if (format_ == formats::nvfp4) tried.push_back(formats::nvfp4_4over6);
    // With a scale per row, where the dialect has that.
    if (format_.element_bits() == 4) {
      const bool rows = why_not_held(options_.dialect, formats::fp8).empty();
      tried.push_back(rows ? formats::fp8 : formats::fp8_tensor);
    }
    return tried;
  }

  std::vector<Candidate> candidates() const {
    std::vector<Candidate> candidates;
    for (const Format& format : considered()) {
      candidates.push_back({format, true});
      candidates.push_back({format, false});
    }
    return candidates;
  }

  SearchInput search_input(Pipeline& model, const QuantizeRecipe& base) {
    return {model,
            calibration_,
            base,
            candidates(),
            options_.minimize,
            *options_.budget,
            rounder_->function(),
            options_.search_points,
            beside_output("search"),
            fmt::format("{} {}", fingerprint(), static_cast<int>(rounding_))};
  }

  void take_found(const QuantizeRecipe& base) {
    result_.recipe = recipe_of(base, *result_.found, result_.found->chosen.choice);
    for (const auto& rule : result_.recipe.rules) {
      const auto scale = first_scales_.find(rule.pattern);
      const bool same_inputs = plain_format(rule.format) == plain_format(format_);
      if (scale != first_scales_.end() && same_inputs && rule.activations) {
        result_.recipe.input_scales.insert(*scale);
      }
    }
  }

  RecipeFile recipe_file() const {
    RecipeFile file;
    file.family = original_.model->family().name;
    file.recipe = result_.recipe;
    file.rounding = rounding_;
    file.cuts = result_.cuts;
    if (calibrates_) {
      const CalibrationOptions& how = plan_.calibration;
      file.calibrated = {how.prompts,
                         how.width,
                         how.height,
                         how.steps,
                         static_cast<int64_t>(how.first_seed),
                         how.guidance,
                         scheduler_name()};
      file.certified = plan_.certified;
    }
    file.origin = {{"model_hash", result_.hash}};
    if (result_.found) {
      file.origin.emplace_back("budget", to_string(*options_.budget));
      file.origin.emplace_back("minimize", to_string(options_.minimize));
      file.origin.emplace_back("cosine", fmt::format("{:.6f}", result_.found->measured));
    }
    return file;
  }

  // Where the certificate says less than the budget, a choice for a higher cosine is taken from
  // what the search measured: the certificate's prompts decide how far to go along its curve, and
  // nothing else.
  void certify() {
    if (plan_.certified.empty()) {
      result_.uncertified = "calibration has seen every prompt that there is";
      return;
    }
    Certifier certifier(plan_.certified, options_.certify, plan_.calibration, scheduler());
    measure(certifier);
    constexpr int kMostRounds = 4;
    for (int round = 1; round < kMostRounds && misses_budget() && tighten(); ++round) {
      measure(certifier);
    }
  }

  void measure(Certifier& certifier) {
    LoadedModel model = load("bf16", "on");
    result_.certificate = certifier.measure(*model.pipeline, result_.recipe, rounder_->function(),
                                            stage("certifying"));
    stage_done();
    result_.uncertified = result_.certificate ? "" : "predictions of the model are not finite";
    if (!result_.certificate) return;
    result_.certificate->model_hash = result_.hash;
    RecipeFile recipe = recipe_file();
    recipe.origin.clear();  // the same recipe, however it came about
    result_.certificate->recipe_hash = text_hash(to_toml(recipe));
  }

  // What the budget is held to: prompts that nothing was chosen by, where they were run.
  double reached() const {
    return result_.certificate ? result_.certificate->velocity_cosine.mean
                               : result_.found->measured;
  }
  bool misses_budget() const {
    return result_.found && options_.budget->cosine && !(reached() >= *options_.budget->cosine);
  }

  // Chooses again, so that losses shrink by as much as the certificate's are too large.
  bool tighten() {
    if (!result_.certificate) return false;
    const double allowed = (1 - *options_.budget->cosine) / (1 - reached());
    constexpr double kMargin = 0.97;  // of what is allowed, so that few rounds are needed
    const double target = 1 - kMargin * allowed * (1 - result_.found->measured);
    LoadedModel model = load("fp32", "on");
    QuantizeRecipe base = result_.recipe;
    base.input_scales.clear();
    if (!choose_again(search_input(*model.pipeline, base), target, *result_.found)) return false;
    take_found(base);
    return true;
  }

  // Says whether the budget is kept; with --strict one that is not leaves nothing behind.
  void hold_to_budget() {
    if (!result_.found || !options_.budget->cosine) return;
    result_.budget = {*options_.budget->cosine, reached(), result_.certificate.has_value()};
    if (result_.budget->met() || !options_.model.strict) return;
    remove_partial();
    throw Error(ErrorCode::kFallback, "strict", "{}", to_text(*result_.budget));
  }

  void write() {
    const ModelWritten written =
        write_model({*original_.model, original_.path, options_.output, options_.dialect,
                     result_.recipe, rounder_->function(), result_.certificate,
                     to_toml(recipe_file()), calibrates_ ? calibration_json(calibration_) : "",
                     [this] { rounder_->check_intact(); }, threads_},
                    stage("writing", true));
    stage_done();
    result_.files = written.files;
    result_.kept = written.kept;
    remove_partial();
  }

  void remove_partial() const {
    if (partial_.empty()) return;
    std::error_code ignored;
    fs::remove(partial_, ignored);
    fs::remove(beside_output("search"), ignored);
    rounder_->remove_files();
  }

  Engine& engine_;
  const QuantizeModelOptions& options_;
  const QuantizeModelEvents& events_;
  int threads_ = 1;
  Format format_;
  Rounding rounding_ = Rounding::kNearest;
  bool calibrates_ = false;
  LoadedModel original_;
  PromptPlan plan_;
  std::vector<std::vector<MomentGroup>> passes_;  // that are left
  fs::path partial_;
  std::map<std::string, float> first_scales_;
  ModelQuantizeResult result_;
  Calibration calibration_;
  std::optional<Rounder> rounder_;
};

}  // namespace

bool calibrates(const QuantizeModelOptions& o) {
  return o.calibrate || o.budget || asks_to_compensate(o) || o.activations == InputScales::kStatic;
}

bool calibrates_as_before(const QuantizeModelOptions& o) {
  return calibrates(o) && o.recipe && o.recipe->calibrated && o.prompts.empty();
}

std::string to_text(const BudgetOutcome& budget) {
  return fmt::format("the budget, a velocity cosine of {}, is {}: {} {:.6f}", budget.asked,
                     budget.met() ? "kept" : "not reached",
                     budget.certified ? "the certificate says" : "the search measured",
                     budget.reached);
}

ModelQuantizeResult quantize_model(Engine& engine, const QuantizeModelOptions& options,
                                   const QuantizeModelEvents& events) {
  return ModelQuantizer(engine, options, events).run();
}

}  // namespace halftone
