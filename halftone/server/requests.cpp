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

// What JavaScript can hold exactly.
constexpr int64_t kMostSeed = (int64_t{1} << 53) - 1;

int64_t random_seed() {
  constexpr uint32_t kMost = 1u << 31;
  return static_cast<int64_t>(randombytes_uniform(kMost));
}

std::vector<std::string> format_names_of(bool with_wide) {
  std::vector<std::string> names;
  for (const Format& format : all_formats()) {
    if (with_wide || format.quantized()) names.emplace_back(format.name);
  }
  return names;
}

std::vector<std::string> and_also(std::vector<std::string> names,
                                  std::initializer_list<const char*> more) {
  names.insert(names.begin(), more.begin(), more.end());
  return names;
}

ObjectSchema common_job(ObjectSchema schema) {
  schema.fields.push_back(
      Field::integer("priority", "Jobs of a higher one come first", -10, 10).or_else(0));
  schema.fields.push_back(
      Field::number("timeout", "Seconds from now after which it is given up", 0.001, 1e7));
  return schema;
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

RequestSchemas::RequestSchemas(const RequestLimits& limits) {
  lora = {"Lora",
          "An adapter, and how strongly it is applied",
          {Field::text("name", "As GET /api/loras lists it").needed(),
           Field::number("strength", "Negative ones work against it", -10, 10).or_else(1.0)}};
  const auto model =
      Field::text("model", "As GET /api/models lists it (default: the first)").or_else("");
  const auto prompt = limits.most_prompt_bytes;
  generate = common_job(
      {"Generate",
       "Pictures from a prompt",
       {Field::text("prompt", "What to show", prompt).needed(),
        Field::text("negative", "What to avoid; needs guidance", prompt).or_else(""), model,
        Field::text("precision", "What the model computes in")
            .one_of(and_also(format_names_of(true), {"auto"}))
            .or_else("auto"),
        Field::text("size", "\"WxH\", instead of width and height", 20),
        Field::integer("width", "Pixels (default: the model's)", 1, 65536),
        Field::integer("height", "Pixels (default: the model's)", 1, 65536),
        Field::integer("steps", "Denoising steps (default: the model's)", 1, limits.most_steps),
        Field::number("guidance", "Strength of the prompt (default: the model's)", 0, 100),
        Field::integer("seed", "Of the first picture (default: a random one)", 0, kMostSeed),
        Field::integer("count", "Pictures, with seed, seed + 1, ...", 1, limits.most_count)
            .or_else(1),
        Field::text("scheduler", "The sampler (default: the model's)").or_else(""),
        Field::objects("loras", "Adapters", 8, lora).or_else(json::array()),
        Field::boolean("previews", "Whether previews are made meanwhile").or_else(true)}});
  train = common_job(
      {"Train",
       "An adapter, or the model itself, from a folder of pictures",
       {Field::text("dataset", "As GET /api/datasets lists it").needed(),
        Field::text("name", "Of the result").needed(),
        model,
        Field::text("mode", "An adapter, all weights, or these for a format")
            .one_of({"lora", "full", "qat"})
            .or_else("lora"),
        Field::integer("steps", "Of the optimizer", 1, limits.most_train_steps).or_else(500),
        Field::integer("batch", "Pictures at a time", 1, 256).or_else(4),
        Field::integer("accumulate", "Batches for each step", 1, 256).or_else(1),
        Field::number("lr", "Learning rate (default: 1e-4, or 1e-5 for mode full and qat)", 0, 10),
        Field::text("schedule", "Of the learning rate")
            .one_of({"constant", "cosine"})
            .or_else("constant"),
        Field::integer("warmup", "Steps in which the rate rises", 0, limits.most_train_steps)
            .or_else(0),
        Field::text("optimizer", "adamw8bit takes less memory")
            .one_of({"adamw", "adamw8bit"})
            .or_else("adamw"),
        Field::integer("rank", "Of the adapter", 1, 1024).or_else(16),
        Field::number("alpha", "The adapter counts alpha / rank (default: rank)", 1e-6, 1e6),
        Field::texts("targets", "all, attention, or patterns of weights", 64, 200)
            .or_else(json::array({"all"})),
        Field::integer("resolution", "Side of a square (default: the model's)", 8, 8192),
        Field::text("precision", "What the base is stored in")
            .one_of(and_also(format_names_of(true), {"auto"}))
            .or_else("auto"),
        Field::text("backward", "What gradients are computed in")
            .one_of({"auto", "bf16", "fp8"})
            .or_else("auto"),
        Field::text("compile", "Whether operations are fused")
            .one_of({"auto", "on", "off"})
            .or_else("auto"),
        Field::text("recompute", "What is computed again instead of kept")
            .one_of({"none", "rows", "blocks"})
            .or_else("rows"),
        Field::text("trigger", "Before every caption", 200).or_else(""),
        Field::text("caption", "Of pictures that have none", prompt).or_else(""),
        Field::number("caption_dropout", "Share of pictures shown without their caption", 0, 1)
            .or_else(0.0),
        Field::number("dropout", "Share of what adapters read that is zero", 0, 0.99).or_else(0.0),
        Field::number("ema", "Write a running mean that forgets this slowly", 0, 0.999999)
            .or_else(0.0),
        Field::integer("seed", "Of everything that is drawn", 0, kMostSeed).or_else(0),
        Field::integer("save_every", "Steps between checkpoints; 0: only where it ends early", 0,
                       limits.most_train_steps)
            .or_else(100),
        Field::integer("sample_every", "Steps between pictures; 0: none", 0,
                       limits.most_train_steps)
            .or_else(0),
        Field::texts("sample_prompts", "What they show (default: the first captions)", 16, prompt)
            .or_else(json::array())}});
  quantize = common_job(
      {"Quantize",
       "A model in 8 or 4 bits, as a new model",
       {model, Field::text("name", "Of the new model").needed(),
        Field::text("format", "Of its linears").one_of(format_names_of(false)).needed(),
        Field::text("budget", "auto, cosine=C or bytes=SIZE: a format for each linear").or_else(""),
        Field::boolean("calibrate", "Run prompts, and use what is seen").or_else(true),
        Field::integer("samples", "Pictures to calibrate on; 0: one per prompt", 0, 1000)
            .or_else(0),
        Field::integer("certify", "Pictures that the certificate is measured on", 0, 1000)
            .or_else(8),
        Field::integer("steps", "Of these pictures (default: the model's)", 1, limits.most_steps),
        Field::text("size", "\"WxH\" of these pictures (default: the model's)", 20),
        Field::integer("seed", "Of the first picture", 0, kMostSeed).or_else(0)}});
  compare =
      common_job({"Compare",
                  "What precisions do to a model, as a page",
                  {model,
                   Field::texts("precisions", "Precisions, or models that were quantized", 16, 200)
                       .or_else(json::array({"fp8", "mxfp8", "nvfp4"})),
                   Field::text("reference", "What they are compared with")
                       .one_of(format_names_of(true))
                       .or_else("bf16"),
                   Field::texts("prompts", "What pictures show (default: our own)", 64, prompt)
                       .or_else(json::array()),
                   Field::integer("seeds", "For each prompt", 1, 16).or_else(1),
                   Field::integer("steps", "Default: the model's", 1, limits.most_steps),
                   Field::integer("width", "Pixels (default: the model's)", 1, 65536),
                   Field::integer("height", "Pixels (default: the model's)", 1, 65536),
                   Field::integer("seed", "Of the first picture", 0, kMostSeed).or_else(0)}});
  dataset = {"Dataset", "A new folder of pictures", {Field::text("name", "Its name").needed()}};
  login = {"Login", "An API key for this browser", {Field::text("key", "The key", 500).needed()}};
}

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
  asked.negative = request["negative"];
  asked.width = request["width"];
  asked.height = request["height"];
  asked.steps = request["steps"];
  asked.guidance = request["guidance"];
  asked.count = request["count"];
  if (request["seed"].get<int64_t>() + asked.count - 1 > kMostSeed) {
    throw invalid("seed", fmt::format("and those after it are beyond {}", kMostSeed));
  }
  check(asked, usual.guidance_rule);
  parts.latent_shape(asked.width, asked.height);
  check_prompts(asked, parts);
  if (const std::string name = request["scheduler"]; !name.empty()) {
    try {
      with_scheduler(usual.scheduler, name);
    } catch (const Error& error) {
      throw invalid("scheduler", error.message());
    }
  }
  for (const json& lora : request["loras"]) shelf.adapter(lora["name"]);
  const std::string key = fmt::format("{}|{}", model->id, request["precision"].get<std::string>());
  return job_of("generate", key, std::move(request));
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
  const auto model = shelf.model(request["model"]);
  request["model"] = model->id;
  if (!model->base.empty()) {
    throw invalid("model",
                  fmt::format("'{}' is a single file; quantizing takes a folder", model->id));
  }
  if (!model->stored.empty()) {
    throw invalid("model", fmt::format("'{}' is stored as {} already", model->id, model->stored));
  }
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
