#include "halftone/server/requests.h"

#include <sodium.h>

#include <algorithm>
#include <charconv>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/engine/checks.h"
#include "halftone/quantize/budget.h"
#include "halftone/server/api_error.h"
#include "halftone/server/clock.h"
#include "halftone/server/names.h"

namespace halftone {
namespace {

using nlohmann::json;

int64_t random_seed() {
  constexpr uint32_t kMost = 1u << 31;
  return static_cast<int64_t>(randombytes_uniform(kMost));
}

// "size": "WxH" in place of width and height.
void read_size(json& body) {
  const auto found = body.find("size");
  if (found == body.end()) return;
  for (const char* other : {"width", "height"}) {
    if (body.contains(other)) throw invalid("size", fmt::format("and {} say the same", other));
  }
  const std::string text = found->get<std::string>();
  const char* const end = text.data() + text.size();
  uint16_t width = 0, height = 0;
  const auto [times, wrong] = std::from_chars(text.data(), end, width);
  const bool has_height = wrong == std::errc() && times != end && *times == 'x';
  const auto [stop, also_wrong] = std::from_chars(has_height ? times + 1 : end, end, height);
  if (!has_height || also_wrong != std::errc() || stop != end) {
    throw invalid("size", fmt::format("'{}' is not WIDTHxHEIGHT", printable(text)));
  }
  body["width"] = width;
  body["height"] = height;
  body.erase("size");
}

void check_pixels(const RequestLimits& limits, int64_t width, int64_t height) {
  if (width * height <= limits.most_pixels) return;
  throw invalid("size", fmt::format("{}x{} has more pixels than the {} that are allowed here",
                                    width, height, limits.most_pixels));
}

NewJob job_of(const char* kind, const std::string& model, json request) {
  NewJob job;
  job.kind = kind;
  job.model = model;
  job.priority = request.value("priority", 0);
  if (request.contains("timeout")) job.deadline = wall_seconds() + request["timeout"].get<double>();
  job.request = dump(request);
  return job;
}

// A precision that a model cannot be run in is refused before it is queued.
void check_precision(const char* field, const ModelOnShelf& model, const std::string& precision) {
  if (precision == "auto" || model.stored.empty()) return;
  const auto format = find_format(precision);
  if (!format || !format->quantized() || precision == model.stored) return;
  throw invalid(field, fmt::format("'{}' cannot be had: the weights of '{}' are stored as {}",
                                   precision, model.id, model.stored));
}

}  // namespace

NewJob generate_job(const RequestSchemas& schemas, const RequestLimits& limits, Shelf& shelf,
                    const json& body) {
  json request = checked(schemas.generate, body);
  read_size(request);
  const auto model = shelf.model(request["model"]);
  request["model"] = model->id;
  check_precision("precision", *model, request["precision"]);
  const ModelParts& parts = *model->parts;
  const Sampling& usual = parts.recommended;
  if (!request.contains("width")) request["width"] = usual.width;
  if (!request.contains("height")) request["height"] = usual.height;
  if (!request.contains("steps")) request["steps"] = usual.steps;
  if (!request.contains("guidance")) request["guidance"] = usual.guidance;
  if (!request.contains("seed")) request["seed"] = random_seed();
  check_pixels(limits, request["width"], request["height"]);
  GenerateRequest asked;
  asked.prompt = request["prompt"];
  if (request.contains("negative")) asked.negative = request["negative"].get<std::string>();
  read_original_size(request["original_size"], "original_size", asked.original);
  read_crop(request["crop"], "crop", asked.original);
  asked.width = request["width"];
  asked.height = request["height"];
  asked.steps = request["steps"];
  asked.guidance = request["guidance"];
  asked.true_cfg = request["true_cfg"];
  asked.cache = request["cache"];
  asked.skip.layers = parse_layers(request["skip_layers"], "skip_layers");
  asked.skip.scale = request["skip_layer_scale"];
  asked.count = request["count"];
  if (request["seed"].get<int64_t>() + asked.count - 1 > kMostSeed) {
    throw invalid("seed", fmt::format("and those after it are beyond {}", kMostSeed));
  }
  check(asked, usual);
  parts.latent_shape(asked.width, asked.height);
  check_prompts(asked, parts);
  check_skip_layers(asked, parts);
  check_original(asked, parts);
  if (const std::string name = request["scheduler"]; !name.empty()) {
    try {
      with_scheduler(usual.scheduler, name);
    } catch (const Error& error) {
      throw invalid("scheduler", error.message());
    }
  }
  for (const json& lora : request["loras"]) {
    const AdapterFit fit = shelf.fit(shelf.adapter(lora["name"]), *model);
    if (fit.why_not.empty()) continue;
    throw invalid("loras", fmt::format("'{}' does not fit '{}': {}",
                                       lora["name"].get<std::string>(), model->id, fit.why_not));
  }
  const std::string key = fmt::format("{}|{}", model->id, request["precision"].get<std::string>());
  return job_of("generate", key, std::move(request));
}

std::string why_not_quantized(const ModelOnShelf& model) {
  if (!model.base.empty()) {
    return fmt::format("'{}' is a single file; quantizing takes a folder", model.id);
  }
  if (model.stored.empty()) return "";
  return fmt::format("'{}' is stored as {} already", model.id, model.stored);
}

void check_new_model(Shelf& shelf, const std::filesystem::path& models, const std::string& name) {
  const bool on_shelf =
      std::ranges::any_of(shelf.models(), [&](const auto& model) { return model->id == name; });
  if (!on_shelf && !path_exists(inside(models, "name", name))) return;
  throw ApiError(409, "conflict", "name", fmt::format("there is a model '{}' already", name));
}

NewJob quantize_job(const RequestSchemas& schemas, Shelf& shelf, const json& body,
                    const std::filesystem::path& models) {
  json request = checked(schemas.quantize, body);
  if (!request["calibrate"].get<bool>()) {  // what a certificate measures is then not there
    for (const char* useless : {"certify", "samples"}) {
      if (body.contains(useless) && body[useless] != 0) {
        throw invalid(useless, "does nothing without calibrate");
      }
    }
    request["certify"] = 0;
  }
  const auto model = shelf.model(request["model"]);
  request["model"] = model->id;
  if (const std::string why = why_not_quantized(*model); !why.empty()) throw invalid("model", why);
  check_new_model(shelf, models, request["name"]);
  if (const std::string budget = request["budget"]; !budget.empty()) {
    parse_budget(budget, *find_format(request["format"].get<std::string>()));
  }
  if (request.contains("size")) {
    read_size(request);
    model->parts->latent_shape(request["width"], request["height"]);
  }
  return job_of("quantize", model->id, std::move(request));
}

NewJob compare_job(const RequestSchemas& schemas, const RequestLimits& limits, Shelf& shelf,
                   const json& body) {
  json request = checked(schemas.compare, body);
  const auto model = shelf.model(request["model"]);
  request["model"] = model->id;
  const Sampling& usual = model->parts->recommended;
  if (!request.contains("width")) request["width"] = usual.width;
  if (!request.contains("height")) request["height"] = usual.height;
  if (!request.contains("steps")) request["steps"] = usual.steps;
  check_pixels(limits, request["width"], request["height"]);
  model->parts->latent_shape(request["width"], request["height"]);
  if (request["precisions"].empty()) throw invalid("precisions", "names none");
  for (const json& precision : request["precisions"]) {
    const std::string name = precision;
    if (find_format(name)) continue;
    try {
      shelf.model(name);
    } catch (const ApiError&) {
      throw invalid("precisions",
                    fmt::format("'{}' is neither a precision nor a model here", printable(name)));
    }
  }
  return job_of("compare", model->id, std::move(request));
}

}  // namespace halftone
