#include "halftone/cli/quantize_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/base/threads.h"
#include "halftone/cli/flags.h"
#include "halftone/cli/progress_bar.h"
#include "halftone/cli/prompt_sets.h"
#include "halftone/cli/quantize_report.h"
#include "halftone/engine/certificate.h"
#include "halftone/io/dialect_writer.h"
#include "halftone/io/model_hash.h"
#include "halftone/io/output.h"
#include "halftone/kernels/quantize.h"
#include "halftone/quantize/parity.h"
#include "halftone/quantize/quantize_checkpoint.h"
#include "halftone/quantize/recipe_file.h"
#include "halftone/quantize/search.h"
#include "halftone/runtime/devices.h"

namespace halftone::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kPart = "transformer";        // of a folder in diffusers layout
constexpr const char* kRecipeName = "recipe.toml";  // in every folder that is written here

// Somewhat above 0.99 and 0.999, so that other prompts than the certificate's are above it, too.
constexpr double kAutoCosine4 = 0.9905, kAutoCosine8 = 0.9991;

// "cosine=0.998", "bytes=12M" or "auto": what a format can be expected to hold.
Budget parse_budget(const std::string& text, const Format& smallest) {
  Budget budget;
  if (text == "auto") {
    budget.cosine = smallest.element_bits() == 4 ? kAutoCosine4 : kAutoCosine8;
    return budget;
  }
  const size_t equals = text.find('=');
  const std::string what = text.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
  if (what == "bytes") {
    budget.bytes = parse_bytes(value, "--budget");
    return budget;
  }
  char* end = nullptr;
  const double cosine = std::strtod(value.c_str(), &end);
  if (what != "cosine" || value.empty() || *end != '\0' || !(cosine > 0 && cosine < 1)) {
    throw Error(ErrorCode::kUsage, "--budget",
                "'{}' is neither auto, cosine=C with C below 1, nor bytes=SIZE", printable(text));
  }
  budget.cosine = cosine;
  return budget;
}

// Weights as they are rounded, each once for each format.
class Rounder {
 public:
  Rounder(Rounding rounding, const Calibration* calibration, int threads, const Context& context)
      : rounding_(rounding), calibration_(calibration), threads_(threads), context_(context) {}

  WeightQuantizer function() {
    if (rounding_ == Rounding::kNearest) return {};
    return [this](const std::string& name, const Tensor& weight, const Format& format) {
      const auto key = std::pair(name, std::string(format.name));
      const auto found = made_.find(key);
      if (found != made_.end()) return found->second;
      if (context_.interrupted && context_.interrupted()) {  // compensating takes a while
        throw Error(ErrorCode::kCancelled, "", "interrupted");
      }
      const InputMoments* moments = calibration_->moments_of(name);
      // A recipe may choose linears whose inputs calibration does not watch.
      QuantizedTensor q =
          moments == nullptr
              ? quantize(cpu_kernels(), weight, format, {}, {threads_})
              : quantize_compensated(weight, format, *moments, cpu_kernels(), {threads_});
      made_.emplace(key, q);
      return q;
    };
  }

 private:
  Rounding rounding_;
  const Calibration* calibration_;
  int threads_;
  const Context& context_;
  std::map<std::pair<std::string, std::string>, QuantizedTensor> made_;
};

class ModelQuantizer {
 public:
  ModelQuantizer(const QuantizeModelOptions& options, const Context& context)
      : options_(options), context_(context), threads_(start_threads(options.model.threads)) {}

  void run() {
    const auto start = std::chrono::steady_clock::now();
    read_recipe_file();
    check();
    load_original();
    choose_prompts();
    choose_rounding();
    check_selects(base_recipe());
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
    result_.output = options_.output;
    result_.points = calibration_.points.size();
    result_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    options_.json ? print_json(to_json(result_)) : print_text(result_);
  }

 private:
  void read_recipe_file() {
    if (!options_.recipe.empty()) given_ = read_recipe(options_.recipe);
    if (!given_ && options_.format.empty()) {
      throw Error(ErrorCode::kUsage, "--format", "is needed, or a --recipe");
    }
    if (given_ && !options_.format.empty()) {
      throw Error(ErrorCode::kUsage, "--format", "and --recipe both say which format");
    }
    if (given_ && !options_.budget.empty()) {
      throw Error(ErrorCode::kUsage, "--budget", "makes a recipe, and --recipe gives one");
    }
    format_ = given_ ? given_->recipe.format : *find_format(options_.format);
    if (!options_.budget.empty()) budget_ = parse_budget(options_.budget, format_);
    const bool compensated =
        options_.rounding == "compensated" ||
        (options_.rounding == "auto" && given_ && given_->rounding == Rounding::kCompensated);
    calibrates_ = options_.calibrate || !options_.budget.empty() || compensated ||
                  options_.activations == "static";
    if (format_.tile_rows != 1 && options_.rounding == "compensated") {
      throw Error(ErrorCode::kUsage, "--rounding", "{} is rounded to nearest only", format_.name);
    }
    const bool usual = calibrates_ && options_.rounding == "auto" && !given_;
    rounding_ = (usual && format_.tile_rows == 1) || compensated ? Rounding::kCompensated
                                                                 : Rounding::kNearest;
  }

  void check() const {
    if (options_.output.empty()) throw Error(ErrorCode::kUsage, "--output", "is needed");
    if (!is_folder(options_.model.model) && !options_.model.model.empty()) {
      throw Error(ErrorCode::kUsage, "--model",
                  "'{}' is no folder; for a single file: halftone quantize FILE --format F -o OUT",
                  printable(options_.model.model));
    }
    if (!options_.model.model.empty()) check_apart(options_.model.model);
    check_output_folder(options_.output, kRecipeName);
    check_dialect();
    if (options_.sampling.seed > static_cast<uint64_t>(INT64_MAX)) {
      throw Error(ErrorCode::kUsage, "--seed", "{} is more than a recipe can hold, {}",
                  options_.sampling.seed, INT64_MAX);
    }
    for (const auto* patterns : {&options_.include, &options_.exclude}) {
      for (const std::string& pattern : *patterns) {
        if (is_valid_utf8(pattern)) continue;
        throw Error(ErrorCode::kUsage, patterns == &options_.include ? "--include" : "--exclude",
                    "'{}' is not UTF-8", printable(pattern));
      }
    }
  }

  // The output beside the model, neither in it nor around it: one would be copied into the other.
  void check_apart(const std::string& input) const {
    std::error_code ignored;
    const fs::path model = fs::weakly_canonical(input, ignored) / "";
    const fs::path output = fs::weakly_canonical(options_.output, ignored) / "";
    const std::string a = model.string(), b = output.string();
    if (a.starts_with(b) || b.starts_with(a)) {
      if (a == b) throw Error(ErrorCode::kUsage, options_.output, "the output is the input");
      throw Error(ErrorCode::kUsage, options_.output,
                  "the output and the model '{}' lie one within the other", printable(input));
    }
  }

  // What the dialect cannot hold is known before the work.
  void check_dialect() const {
    check_dialect_holds(options_.dialect, format_);
    if (!given_) return;
    for (const auto& rule : given_->recipe.rules)
      check_dialect_holds(options_.dialect, rule.format);
  }

  ModelOptions with(const std::string& precision, const std::string& compile) const {
    ModelOptions how = options_.model;
    how.precision = precision;
    how.compile = compile;
    return how;
  }

  // In full precision, so that what is measured is the formats' doing alone.
  void load_original() {
    original_ = load(with("fp32", "off"), context_);
    check_apart(original_.path);  // the model that ships has no other name before
    if (original_.model->report().stored) {
      throw Error(ErrorCode::kInvalidInput, original_.path,
                  "is quantized already; quantize the original");
    }
    result_.hash = original_.model->hash();
    if (given_ && given_->family != original_.model->family().name) {
      throw Error(ErrorCode::kInvalidInput, options_.recipe, "is a recipe for {}, not for {}",
                  printable(given_->family), original_.model->family().name);
    }
  }

  // What calibration, the search and the certificate run on: a recipe's, the user's or our own.
  void choose_prompts() {
    const PromptSets own = usual_prompt_sets();
    if (given_ && given_->calibrated && options_.prompts.empty()) {
      const auto& c = *given_->calibrated;
      how_.prompts = c.prompts;
      how_.first_seed = static_cast<uint64_t>(c.seed);
      how_.width = c.width;
      how_.height = c.height;
      how_.steps = static_cast<int>(c.steps);
      certified_ = given_->certified.empty() ? own.certificate : given_->certified;
    } else {
      const Sampling sampling = sampling_of(options_.sampling, original_.sampling);
      how_.first_seed = options_.sampling.seed;
      how_.width = sampling.width;
      how_.height = sampling.height;
      how_.steps = sampling.steps;
      how_.guidance = sampling.guidance;
      const bool searches = !options_.budget.empty();
      const auto given = gather_prompts({}, options_.prompts);
      const PromptSets sets = given.empty() ? own : split_prompts(given, searches);
      if (!given.empty() && unseen(given, {}).size() < kFewestToSplit) {
        print_note(
            "halftone quantize: {}: holds less than {} prompts, too few to keep some for "
            "measuring: {} on prompts of our own\n",
            printable(options_.prompts), kFewestToSplit,
            searches ? "formats are chosen and the certificate is measured"
                     : "the certificate is measured");
      }
      how_.prompts = sets.calibration;
      if (searches) how_.held_out = sets.search;
      certified_ = sets.certificate;
      repeat_for_samples();
    }
    certified_ = unseen(certified_, how_.prompts);
    if (certified_.empty()) certified_ = unseen(own.certificate, how_.prompts);
    how_.threads = threads_;
  }

  // That of the user, or the model's own.
  SchedulerConfig scheduler() const {
    return sampling_of(options_.sampling, original_.sampling).scheduler;
  }

  void repeat_for_samples() {
    if (options_.samples == 0) return;
    for (size_t i = 0; static_cast<int>(how_.prompts.size()) < options_.samples; ++i) {
      how_.prompts.push_back(how_.prompts[i]);
    }
    how_.prompts.resize(static_cast<size_t>(options_.samples));
  }

  // Moments of inputs take the square of their width, for every input of the model.
  void choose_rounding() {
    how_.moments = rounding_ == Rounding::kCompensated;
    if (!how_.moments) return;
    std::map<int, int64_t> widths;  // by group
    for (const LinearInfo& linear : original_.model->linears()) {
      widths[linear.group] = linear.shape[1];
    }
    int64_t bytes = 0;
    for (const auto& [group, width] : widths) bytes += 2 * width * width * int64_t{sizeof(float)};
    if (bytes <= available_memory() / 2) return;
    rounding_ = Rounding::kNearest;
    how_.moments = false;
    const std::string why =
        fmt::format("weights are rounded to nearest, because compensating would take {} of memory",
                    human_bytes(bytes));
    if (options_.model.strict) throw Error(ErrorCode::kFallback, "--strict", "{}", why);
    print_note("halftone quantize: fallback: {}\n", why);
  }

  void run_calibration() {
    // Beside the output, which is not there before it is complete.
    partial_ = fs::path(options_.output + ".calibration.safetensors");
    const std::string fingerprint = text_hash(
        fmt::format("{} {} {} {} {} {} {} {} {} {}", result_.hash, fmt::join(how_.prompts, "\n"),
                    fmt::join(how_.held_out, "\n"), how_.first_seed, how_.width, how_.height,
                    how_.steps, how_.moments, how_.guidance, options_.sampling.scheduler));
    ProgressBar bar("calibrating", context_, options_.json, ProgressBar::Unit::kSteps);
    calibration_ = calibrate(*original_.pipeline, scheduler(), how_, partial_, fingerprint,
                             [&](const Progress& p) { bar.update(p); });
    bar.clear();
    if (!calibration_.not_resumed.empty()) {
      print_note("halftone quantize: {}; calibration was begun anew\n", calibration_.not_resumed);
    }
  }

  QuantizeRecipe base_recipe() const {
    QuantizeRecipe base = given_ ? given_->recipe : original_.model->denoiser().recipe(format_);
    for (const std::string& pattern : options_.exclude) {
      base.keep.insert(base.keep.begin(), {pattern, "excluded"});
    }
    if (!options_.include.empty()) base.include = options_.include;
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
                  : given_                    ? options_.recipe
                  : !options_.exclude.empty() ? "--exclude"
                  : !options_.include.empty() ? "--include"
                                              : original_.path,
                  "{}", error.message());
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
    rounder_.emplace(rounding_, &calibration_, threads_, context_);
    result_.recipe = base;
    add_scales();
    if (!options_.budget.empty()) search();
  }

  // Static scales, where they were asked for or the format has no other way that is cheap: a scale
  // that spans rows is otherwise taken from each picture.
  void add_scales() {
    if (!calibrates_ || options_.activations == "dynamic" || given_) return;
    for (const auto& [weight, range] : calibration_.inputs) {
      if (!range.finite()) continue;
      const bool spans_rows = format_.span == ScaleSpan::kTensor || format_.global_scale;
      if (format_.scale == ScaleType::kE8M0 || (!spans_rows && options_.activations != "static")) {
        continue;
      }
      result_.recipe.input_scales[weight] = static_scale_for(format_, range.largest());
    }
  }

  void search() {
    const QuantizeRecipe base = search_base();
    // Compiled: many predictions are made.
    LoadedModel model = load(with("fp32", "on"), context_);
    ProgressBar bar("measuring layers", context_, options_.json, ProgressBar::Unit::kSteps);
    result_.found = search_formats(search_input(*model.pipeline, base),
                                   [&](const Progress& p) { bar.update(p); });
    bar.clear();
    take_found(base);
  }

  // Without scales: they are those of the first format alone, and added to what it is chosen for.
  QuantizeRecipe search_base() {
    first_scales_ = std::exchange(result_.recipe.input_scales, {});
    return result_.recipe;
  }

  SearchInput search_input(Pipeline& model, const QuantizeRecipe& base) {
    std::vector<Format> considered = {format_};
    if (format_ == formats::nvfp4) considered.push_back(formats::nvfp4_4over6);
    // With a scale per row, where the dialect has that.
    if (format_.element_bits() == 4) {
      considered.push_back(why_not_held(options_.dialect, formats::fp8).empty()
                               ? formats::fp8
                               : formats::fp8_tensor);
    }
    std::vector<Candidate> candidates;
    for (const Format& format : considered) {
      candidates.push_back({format, true});
      candidates.push_back({format, false});
    }
    const Minimize minimize = options_.minimize == "bytes"  ? Minimize::kBytes
                              : options_.minimize == "time" ? Minimize::kTime
                                                            : Minimize::kBoth;
    return {model, calibration_, base, candidates, minimize, budget_, rounder_->function()};
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
    RecipeFile file{std::string(original_.model->family().name), result_.recipe, rounding_, {}, {}};
    if (calibrates_) {
      file.calibrated = {how_.prompts, how_.width, how_.height, how_.steps,
                         static_cast<int64_t>(how_.first_seed)};
      file.certified = certified_;
    }
    file.origin = {{"model_hash", result_.hash}};
    if (result_.found) {
      file.origin.emplace_back("budget", options_.budget);
      file.origin.emplace_back("minimize", options_.minimize);
      file.origin.emplace_back("cosine", fmt::format("{:.6f}", result_.found->measured));
    }
    return file;
  }

  // Against bf16, on prompts and noise that neither calibration nor the search has seen. Where that
  // is less than the budget, a choice for a higher cosine is taken from what the search measured:
  // the certificate's prompts decide how far to go along its curve, and nothing else.
  void certify() {
    if (certified_.empty()) {
      result_.uncertified = "calibration has seen every prompt that there is";
      return;
    }
    ParityOptions how;
    how.prompts = certified_;
    const auto pictures = static_cast<size_t>(options_.certify);
    how.prompts.resize(std::min(how.prompts.size(), pictures));
    how.seeds = static_cast<int>(pictures / how.prompts.size());
    how.first_seed = how_.first_seed + 1'000'000;
    how.width = how_.width;
    how.height = how_.height;
    how.steps = how_.steps;
    how.guidance = how_.guidance;
    how.layer_cases = 0;
    std::optional<ReferenceRun> reference;
    measure(how, reference);
    constexpr int kMostRounds = 4;
    for (int round = 1; round < kMostRounds && misses_budget() && tighten(); ++round) {
      measure(how, reference);
    }
  }

  void measure(const ParityOptions& how, std::optional<ReferenceRun>& reference) {
    const int64_t first = reference ? 0 : reference_predictions(how);
    int64_t before = 0;
    ProgressBar bar("certifying", context_, options_.json, ProgressBar::Unit::kSteps);
    const ProgressFn progress = [&](const Progress& p) {
      bar.update({p.item, before + p.done, first + compared_predictions(how)});
    };
    LoadedModel model = load(with("bf16", "on"), context_);
    if (!reference) reference = run_reference(*model.pipeline, scheduler(), how, progress);
    before = first;
    model.pipeline->set_recipe(result_.recipe, rounder_->function());
    ParityResult result = compare_with(*reference, *model.pipeline, how, 0, progress);
    bar.clear();
    result.name = format_names(model.pipeline->model().report().formats);
    Certificate certificate = certificate_of(result, how);
    certificate.model_hash = result_.hash;
    RecipeFile recipe = recipe_file();
    recipe.origin.clear();  // the same recipe, however it came about
    certificate.recipe_hash = text_hash(to_toml(recipe));
    certificate.reference = "bf16";
    certificate.prompts_from =
        unseen(how.prompts, usual_prompt_sets().certificate).empty() ? "own" : "given";
    result_.certificate.reset();
    if (certificate.finite()) result_.certificate = std::move(certificate);
    result_.uncertified = result_.certificate ? "" : "predictions of the model are not finite";
  }

  // What the budget is held to: prompts that nothing was chosen by, where they were run.
  double reached() const {
    return result_.certificate ? result_.certificate->velocity_cosine.mean
                               : result_.found->measured;
  }
  bool misses_budget() const {
    return result_.found && budget_.cosine && !(reached() >= *budget_.cosine);
  }

  // Chooses again, so that losses shrink by as much as the certificate's are too large.
  bool tighten() {
    if (!result_.certificate) return false;
    const double allowed = (1 - *budget_.cosine) / (1 - reached());
    constexpr double kMargin = 0.97;  // of what is allowed, so that few rounds are needed
    const double target = 1 - kMargin * allowed * (1 - result_.found->measured);
    LoadedModel model = load(with("fp32", "on"), context_);
    QuantizeRecipe base = result_.recipe;
    base.input_scales.clear();
    if (!choose_again(search_input(*model.pipeline, base), target, *result_.found)) return false;
    take_found(base);
    return true;
  }

  // Says whether the budget is kept; with --strict one that is not leaves nothing behind.
  void hold_to_budget() {
    if (!result_.found || !budget_.cosine) return;
    result_.budget = {*budget_.cosine, reached(), result_.certificate.has_value()};
    if (result_.budget->met() || !options_.model.strict) return;
    std::error_code ignored;
    fs::remove(partial_, ignored);
    throw Error(ErrorCode::kFallback, "--strict", "{}", to_text(*result_.budget));
  }

  void write() {
    FileQuantizeOptions how{format_, {}, {}, std::map<std::string, WeightChoice>(), {}, {}};
    const Checkpoint input = Checkpoint::open(fs::path(original_.path) / kPart);
    // What the recipe selects, by the model's own names.
    const QuantizeReport planned = original_.model->plan_recipe(result_.recipe);
    for (const auto& linear : planned.converted) {
      if (input.find(linear.weight) == nullptr) {
        throw Error(ErrorCode::kUnsupported, original_.path,
                    "names its tensors otherwise than diffusers ('{}' is missing); quantize the "
                    "file by itself",
                    printable(linear.weight));
      }
      WeightChoice choice{linear.format, linear.activations && result_.recipe.activations, {}};
      const auto scale = result_.recipe.input_scales.find(linear.weight);
      if (scale != result_.recipe.input_scales.end() && choice.activations &&
          linear.format.scale != ScaleType::kE8M0) {
        choice.input_scale = scale->second;
      }
      (*how.chosen)[linear.weight] = choice;
    }
    result_.kept = planned.kept;
    how.quantizer = rounder_->function();
    if (result_.certificate) how.metadata[kCertificateKey] = to_json(*result_.certificate);
    ProgressBar bar("writing", context_, options_.json);
    const ProgressFn progress = [&](const Progress& p) { bar.update(p); };
    OutputFolder output(options_.output);
    const fs::path& folder = output.staging();
    output.write([&] {
      copy_model_folder(original_.path, folder, kPart, progress);
      result_.files =
          quantize_checkpoint(input, folder / kPart, how, cpu_kernels(), {threads_}, progress);
      if (options_.dialect != "halftone") {
        convert_checkpoint(input, folder / kPart, *find_dialect(options_.dialect), progress);
      }
      write_file(folder / kRecipeName, to_toml(recipe_file()));
      if (calibrates_) write_file(folder / "calibration.json", calibration_json(calibration_));
    });
    output.commit({kPart});
    bar.clear();
    std::error_code ignored;
    if (!partial_.empty()) fs::remove(partial_, ignored);
  }

  const QuantizeModelOptions& options_;
  const Context& context_;
  int threads_;
  Format format_;
  Budget budget_;
  Rounding rounding_ = Rounding::kNearest;
  bool calibrates_ = false;
  std::optional<RecipeFile> given_;
  LoadedModel original_;
  CalibrationOptions how_;
  std::vector<std::string> certified_;  // prompts of the certificate
  fs::path partial_;
  std::map<std::string, float> first_scales_;
  ModelQuantizeResult result_;
  Calibration calibration_;
  std::optional<Rounder> rounder_;
};

}  // namespace

std::string why_not_held(const std::string& dialect, const Format& format) {
  if (!format.quantized()) return {};
  const WeightInfo weight{"layer.weight", format, {256, 256}, 1, {}, false};
  return why_not_in(*find_dialect(dialect), weight);
}

void check_dialect_holds(const std::string& dialect, const Format& format) {
  const std::string why = why_not_held(dialect, format);
  if (why.empty()) return;
  throw Error(ErrorCode::kUnsupported, "--dialect", "{} cannot be written for {}: {}", format.name,
              dialect, why);
}

void quantize_model(const QuantizeModelOptions& options, const Context& context) {
  ModelQuantizer(options, context).run();
}

}  // namespace halftone::cli
