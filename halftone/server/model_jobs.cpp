// Quantizing and comparing as jobs.
#include "halftone/base/error.h"
#include "halftone/io/output.h"
#include "halftone/quantize/budget.h"
#include "halftone/quantize/compare_model.h"
#include "halftone/quantize/quantize_model.h"
#include "halftone/server/api_error.h"
#include "halftone/server/long_job.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

}  // namespace

ordered_json run_quantize_job(LongJob& job) {
  const json& request = job.request();
  const LongJob::With& with = job.with();
  const auto model = with.shelf.model(request.at("model"));
  const std::string name = request.at("name");
  QuantizeModelOptions options;
  options.model = with.shelf.spec(*model, "auto");
  options.model.cancelled = [&job] { return job.ended(); };
  options.output = with.folders.models / name;
  options.format = find_format(request.at("format").get<std::string>());
  if (const std::string budget = request.at("budget"); !budget.empty()) {
    options.budget = parse_budget(budget, *options.format);
  }
  options.calibrate = request.at("calibrate");
  options.samples = request.at("samples");
  options.certify = request.at("certify");
  options.sampling.seed = request.at("seed");
  if (request.contains("steps")) options.sampling.steps = request["steps"].get<int>();
  if (request.contains("width")) {
    options.sampling.size = {request["width"].get<int64_t>(), request["height"].get<int64_t>()};
  }
  std::vector<std::string> notes;
  QuantizeModelEvents events;
  events.progress = [&](const QuantizeModelEvents::Stage& stage, const Progress& progress) {
    if (job.ended()) throw Error(ErrorCode::kCancelled, "", "interrupted");
    job.tell_progress({{"stage", stage.name},
                       {"done", progress.done},
                       {"total", progress.total},
                       {"seconds_left", nullptr}});
  };
  events.note = [&](const std::string& line) {
    notes.push_back(job.without_paths(line));
    job.tell("warning", {{"message", notes.back()}});
  };
  const ModelQuantizeResult result = quantize_model(with.engine, options, events);
  ordered_json summary;
  summary["model"] = name;
  summary["bytes_before"] = model->bytes;
  const auto made = with.shelf.model(name);
  summary["bytes_after"] = made->bytes;
  summary["certificate"] = certificate_json(result.certificate);
  if (!result.uncertified.empty()) notes.push_back(job.without_paths(result.uncertified));
  if (result.budget) notes.push_back(to_text(*result.budget));
  summary["notes"] = notes;
  summary["kept"] = ordered_json::array();
  for (const auto& kept : result.kept) {
    summary["kept"].push_back({{"weight", kept.weight}, {"why", kept.reason}});
  }
  summary["seconds"] = result.seconds;
  return summary;
}

ordered_json run_compare_job(LongJob& job) {
  const json& request = job.request();
  const LongJob::With& with = job.with();
  CompareModelOptions options;
  options.model = with.shelf.spec(*with.shelf.model(request.at("model")), "auto");
  options.model.cancelled = [&job] { return job.ended(); };
  options.reference = request.at("reference");
  options.precisions.clear();
  for (const json& precision : request.at("precisions")) {
    const std::string name = precision;
    options.precisions.push_back(find_format(name) ? name : with.shelf.model(name)->path.string());
  }
  options.parity.prompts = request.at("prompts").get<std::vector<std::string>>();
  options.parity.seeds = request.at("seeds");
  options.parity.first_seed = request.at("seed");
  options.parity.width = request.at("width");
  options.parity.height = request.at("height");
  options.parity.steps = request.at("steps");
  ParityReport report = compare_model(with.engine, options, [&](const Progress& progress) {
    if (job.ended()) throw Error(ErrorCode::kCancelled, "", "interrupted");
    job.tell_progress({{"stage", "comparing"},
                       {"done", progress.done},
                       {"total", progress.total},
                       {"seconds_left", nullptr}});
  });
  report.model = request.at("model");  // and not where it lies
  const fs::path folder = with.folders.run(job.stored().id);
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  write_file(folder / "report.html", parity_page(report));
  job.add_file("report.html", "text/html; charset=utf-8", folder / "report.html",
               {{"media", "page"}});
  write_file(folder / "report.json", dump(parity_json(report)) + "\n");
  job.add_file("report.json", "application/json", folder / "report.json", {{"media", "data"}});
  job.add_fallbacks(report.fallbacks);
  ordered_json rows = ordered_json::array();
  for (const ParityResult& result : report.results) {
    rows.push_back({{"precision", result.name},
                    {"how", result.how},
                    {"velocity_cosine", result.velocity_cosine_all.mean},
                    {"velocity_cosine_worst", result.velocity_cosine_all.worst},
                    {"ssim", result.ssim.mean},
                    {"seconds", result.seconds_per_step},
                    {"bytes", result.weight_bytes}});
  }
  return {{"rows", rows}, {"reference", report.reference}, {"fallbacks", report.fallbacks}};
}

}  // namespace halftone
