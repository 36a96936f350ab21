// Training as a job: a request becomes TrainOptions, and what happens becomes events and results.
#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/io/output.h"
#include "halftone/quantize/quantize_checkpoint.h"
#include "halftone/server/api_error.h"
#include "halftone/server/long_job.h"
#include "halftone/server/names.h"
#include "halftone/server/requests.h"
#include "halftone/training/train_names.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

bool is_lora(const json& request) { return request.at("mode") == "lora"; }

// What will have the result's name: an adapter's file, or a model's folder.
fs::path place_of(const json& request, const DataFolders& folders) {
  const std::string name = request.at("name");
  return is_lora(request) ? folders.loras / (name + ".safetensors") : folders.models / name;
}

void set_rules(const json& request, TrainOptions& options) {
  TrainNames names;
  names.mode = request.at("mode");
  names.schedule = request.at("schedule");
  names.optimizer = request.at("optimizer");
  names.recompute = request.at("recompute");
  names.backward = request.at("backward");
  set_rules(names, options);
  TrainRules& rules = options.rules;
  rules.steps = request.at("steps");
  rules.batch = request.at("batch");
  rules.accumulate = request.at("accumulate");
  rules.rank = request.at("rank");
  rules.alpha = request.value("alpha", static_cast<float>(rules.rank));
  rules.optimizer.learning_rate = request.value("lr", usual_learning_rate(rules.mode));
  rules.warmup = request.at("warmup");
  rules.caption_dropout = request.at("caption_dropout");
  rules.dropout = request.at("dropout");
  rules.average = request.at("ema");
  rules.seed = request.at("seed");
}

TrainOptions options_of(LongJob& job) {
  const json& request = job.request();
  const LongJob::With& with = job.with();
  TrainOptions options;
  options.model = with.shelf.spec(*with.shelf.model(request.at("model")), request.at("precision"));
  options.model.compile = request.at("compile");
  options.model.cancelled = [&job] { return job.ended(); };
  options.stop = options.model.cancelled;
  options.data = with.datasets.folder(request.at("dataset"));
  const fs::path run = with.folders.run(job.stored().id);
  std::error_code ignored;
  fs::create_directories(run, ignored);
  options.output = run / (request.at("name").get<std::string>() + ".safetensors");
  options.cache = with.folders.cache;
  set_rules(request, options);
  options.targets = request.at("targets").get<std::vector<std::string>>();
  options.resolution = request.value("resolution", int64_t{0});
  options.captions.trigger = request.at("trigger");
  options.captions.links = !with.datasets.is_editable(request.at("dataset"));
  options.captions.usual = request.at("caption");
  options.save_every = request.at("save_every");
  options.samples.every = request.at("sample_every");
  options.samples.prompts = request.at("sample_prompts").get<std::vector<std::string>>();
  options.resume = job.stored().resume;
  return options;
}

// Tells a run's events.
class Teller {
 public:
  Teller(LongJob& job, bool& can_resume) : job_(job), can_resume_(can_resume) {}

  void operator()(const Preparing& e) {
    job_.tell_progress({{"stage", e.stage}, {"done", e.done}, {"total", e.total}},
                       e.done == e.total);
  }
  void operator()(const TrainModelLoaded& e) {
    summary["precision"] = choice_json(e.precision);
    summary["backward"] = choice_json(e.backward);
    summary["compile"] = choice_json(e.compile);
    summary["device"] = choice_json(e.device);
    summary["converted"] = e.formats;
    summary["planned_bytes"] = e.planned_bytes;
    summary["parameters"] = e.parameters;
    ordered_json fields = summary;
    fields["kept"] = e.kept.size();
    job_.tell("model_loaded", fields);
  }
  void operator()(const TrainProgress& e) {
    ordered_json progress = {{"stage", "training"},
                             {"done", e.step},
                             {"total", e.total},
                             {"loss", e.loss},
                             {"average_loss", e.average_loss},
                             {"learning_rate", e.learning_rate},
                             {"gradient_norm", e.gradient_norm},
                             {"peak_bytes", e.peak_bytes},
                             {"samples_per_second", nullptr},
                             {"seconds_left", nullptr}};
    if (e.samples_per_second > 0) {
      progress["samples_per_second"] = e.samples_per_second;
      progress["seconds_left"] = e.seconds_left;
    }
    job_.tell_progress(progress, true);  // every step is a point of the curve
  }
  void operator()(const TrainWarning& e) {
    job_.tell("warning", {{"message", job_.without_paths(e.message)}});
  }
  void operator()(const CheckpointSaved& e) {
    can_resume_ = true;
    job_.tell("checkpoint", {{"step", e.step}});
  }
  void operator()(const SampleMade& e) {
    const fs::path path = e.path;
    job_.add_file(path.filename().string(), "image/png", path,
                  {{"media", "image"}, {"step", e.step}, {"prompt", e.prompt}});
  }
  void operator()(const HeldOutLoss& e) {
    job_.tell("held_out", {{"step", e.step}, {"loss", e.loss}});
  }
  void operator()(const GradientsChecked& e) {
    job_.tell("gradients",
              {{"mean", e.mean}, {"worst", e.worst}, {"worst_weight", e.worst_weight}});
  }
  void operator()(const TrainComplete&) {}

  ordered_json summary = ordered_json::object();

 private:
  LongJob& job_;
  bool& can_resume_;
};

// `result` as `place`, which nothing may be yet; without a copy where that can be.
void link_or_copy(const fs::path& result, const fs::path& place) {
  const fs::path beside = place.string() + ".new";
  std::error_code error;
  fs::remove(beside, error);
  fs::create_hard_link(result, beside, error);
  if (error) fs::copy_file(result, beside, fs::copy_options::overwrite_existing, error);
  if (!error) fs::rename(beside, place, error);
  if (error) throw Error(write_error(error.value()), place.string(), "{}", error.message());
}

// Trained weights as a model: all that the one they come from has besides its own.
void make_model(LongJob& job, const fs::path& result, const fs::path& place) {
  const auto from = job.with().shelf.model(job.request().at("model"));
  const std::string part(from->parts->denoiser->folder());
  OutputFolder folder(place);
  folder.write([&] {
    copy_model_folder(from->base.empty() ? from->path : from->base, folder.staging(), part,
                      [&](const Progress&) {
                        if (job.ended()) throw Error(ErrorCode::kCancelled, "", "interrupted");
                      });
    link_or_copy(result, folder.staging() / part / "diffusion_pytorch_model.safetensors");
  });
  folder.commit({});
}

// The result under its name among adapters or models: the run's own file stays where it is.
void put_in_place(LongJob& job, const fs::path& result) {
  const fs::path place = place_of(job.request(), job.with().folders);
  if (path_exists(place)) {  // since it was asked for
    throw ApiError(409, "conflict", "name",
                   fmt::format("there is one called '{}' by now; this one's is among its results",
                               job.request().at("name").get<std::string>()));
  }
  is_lora(job.request()) ? link_or_copy(result, place) : make_model(job, result, place);
}

// Patterns of which one matches no weight at all are a mistake that can be told at once.
void check_targets(const ModelOnShelf& model, const json& targets) {
  if (targets.empty()) throw invalid("targets", "names none");
  const Denoiser& denoiser = *model.parts->denoiser;
  const auto graph = denoiser.build(denoiser.smallest_shape(), {});
  for (const json& target : targets) {
    const std::string pattern = target;
    if (pattern == "all" || pattern == "attention") continue;
    const bool found = std::ranges::any_of(
        graph->weights(), [&](const auto& weight) { return glob_match(pattern, weight.first); });
    if (!found) {
      throw invalid("targets",
                    fmt::format("'{}' matches no weight of '{}'", printable(pattern), model.id));
    }
  }
}

}  // namespace

NewJob train_job(const RequestSchemas& schemas, Shelf& shelf, const Datasets& datasets,
                 const DataFolders& folders, const json& body) {
  json request = checked(schemas.train, body);
  const auto model = shelf.model(request["model"]);
  request["model"] = model->id;
  datasets.folder(request["dataset"]);
  check_name("name", request["name"]);
  if (!is_lora(request)) check_new_model(shelf, folders.models, request["name"]);
  check_targets(*model, request["targets"]);
  if (request["warmup"] > request["steps"]) throw invalid("warmup", "is longer than the run");
  if (path_exists(place_of(request, folders))) {
    throw ApiError(
        409, "conflict", "name",
        fmt::format("there is one called '{}' already", request["name"].get<std::string>()));
  }
  if (!is_lora(request) && !model->stored.empty()) {
    throw invalid("model", fmt::format("'{}' is stored as {}: only adapters can be trained beside "
                                       "it",
                                       model->id, model->stored));
  }
  if (request["mode"] == "qat") {
    const auto format = find_format(request["precision"].get<std::string>());
    if (!format || !format->quantized()) {
      throw invalid("precision", "is to be a format such as fp8 with mode qat");
    }
  }
  if (!is_lora(request) && request["dropout"] > 0) throw invalid("dropout", "is for mode lora");
  if (!request["sample_prompts"].empty() && request["sample_every"] == 0) {
    throw invalid("sample_prompts", "are shown only with sample_every");
  }
  if (request.contains("resolution")) {
    const int64_t side = request["resolution"];
    if (side % model->parts->size_multiple() != 0) {
      throw invalid("resolution",
                    fmt::format("{} is no multiple of {}", side, model->parts->size_multiple()));
    }
  }
  NewJob job;
  job.kind = "train";
  job.model = model->id;
  job.priority = request.value("priority", 0);
  if (request.contains("timeout")) {
    throw invalid("timeout", "is not for training: it can be stopped and resumed");
  }
  job.request = dump(request);
  return job;
}

ordered_json run_train_job(LongJob& job, bool& can_resume) {
  const TrainOptions options = options_of(job);
  can_resume = job.stored().resume;
  Teller teller(job, can_resume);
  const TrainResult result = train(job.with().engine, options,
                                   [&](const TrainEvent& event) { std::visit(teller, event); });
  const bool lora = is_lora(job.request());
  job.add_file(fs::path(result.output).filename().string(), "application/octet-stream",
               result.output, {{"media", lora ? "adapter" : "model"}});
  if (!result.report.empty()) {
    const auto page = Storage::map_file(result.report);
    const auto* text = reinterpret_cast<const char*>(page->bytes().data());
    write_file(result.report, named_folders({text, page->size()}, job.folder_names()));
    job.add_file("report.html", "text/html; charset=utf-8", result.report, {{"media", "page"}});
  }
  put_in_place(job, result.output);
  ordered_json summary = teller.summary;
  const std::string name = job.request().at("name");
  summary["lora"] = nullptr;
  summary["model"] = nullptr;
  summary[lora ? "lora" : "model"] = name;
  summary["steps"] = result.curve.size();
  summary["loss_first"] = result.curve.empty() ? 0 : result.curve.front().loss;
  double last = 0;
  const size_t tail = std::max<size_t>(1, result.curve.size() / 10);
  for (size_t i = result.curve.size() - std::min(tail, result.curve.size());
       i < result.curve.size(); ++i) {
    last += result.curve[i].loss / static_cast<double>(tail);
  }
  summary["loss_last"] = last;
  summary["seconds"] = result.seconds;
  summary["samples_per_second"] = result.samples_per_second;
  summary["peak_bytes"] = result.peak_bytes;
  summary["pictures"] = result.pictures;
  summary["notes"] = ordered_json::array();
  for (const std::string& note : result.notes) summary["notes"].push_back(job.without_paths(note));
  summary["skipped"] = ordered_json::array();
  for (const SkippedFile& file : result.skipped) {
    summary["skipped"].push_back(
        {{"file", fs::path(file.file).filename().string()}, {"why", job.without_paths(file.why)}});
  }
  return summary;
}

}  // namespace halftone
