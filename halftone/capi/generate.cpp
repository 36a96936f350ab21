// Requests, runs and results of the C API.
#include "halftone/engine/generate.h"

#include <cmath>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/capi/model.h"
#include "halftone/capi/run.h"
#include "halftone/capi/structs.h"
#include "halftone/engine/checks.h"
#include "halftone/engine/picture_text.h"
#include "halftone/io/png.h"

namespace halftone::capi {
namespace {

struct MadePicture {
  Tensor latents, image;
  std::vector<int64_t> latent_shape;
  std::vector<uint8_t> rgb;
  std::vector<int> reused;  // steps
};

halftone_request defaults_of(const LoadedModel& loaded) {
  const GenerateRequest usual = loaded.request("");
  halftone_request out{};
  out.size = sizeof out;
  out.width = usual.width;
  out.height = usual.height;
  out.steps = usual.steps;
  out.guidance = usual.guidance;
  out.seed = usual.seed;
  out.count = usual.count;
  out.batch = usual.batch;
  return out;
}

AdapterChoices adapters_of(const SharedModel& model, const halftone_request& asked) {
  AdapterChoices choices;
  if (asked.adapter_count == 0) return choices;
  check_not_null(asked.adapters, "adapters");
  for (size_t i = 0; i < asked.adapter_count; ++i) {
    const halftone_adapter* const adapter = asked.adapters[i];
    check_not_null(adapter, "adapters");
    if (adapter->model.get() != &model) {
      throw Error(ErrorCode::kUsage, "adapters", "number {} was loaded for another model", i);
    }
    const float strength = asked.strengths == nullptr ? 1.0f : asked.strengths[i];
    if (!std::isfinite(strength)) {
      throw Error(ErrorCode::kUsage, "strengths", "number {} is {}", i, strength);
    }
    choices.push_back({adapter->adapter, strength});
  }
  return choices;
}

GenerateRequest request_of(const SharedModel& model, const halftone_request& asked) {
  const LoadedModel& loaded = model.loaded();
  check_not_null(asked.prompt, "prompt");
  GenerateRequest request = loaded.request(asked.prompt);
  if (asked.negative != nullptr) request.negative = asked.negative;
  if (asked.scheduler != nullptr) {
    request.scheduler = with_scheduler(loaded.sampling.scheduler, asked.scheduler);
  }
  request.width = asked.width;
  request.height = asked.height;
  request.steps = asked.steps;
  request.guidance = asked.guidance;
  request.seed = asked.seed;
  request.count = asked.count;
  request.batch = asked.batch;
  request.adapters = adapters_of(model, asked);
  request.true_cfg = asked.true_cfg;
  request.cache = asked.cache;
  if (asked.skip_layers != nullptr) {
    request.skip.layers = parse_layers(asked.skip_layers, "skip_layers");
  }
  if (asked.skip_layer_scale != 0) request.skip.scale = asked.skip_layer_scale;
  request.original = {asked.original_width, asked.original_height, asked.crop_left, asked.crop_top};
  check(request, loaded.sampling);
  check_original(request, loaded.model->parts());
  if (asked.max_memory < 0) {
    throw Error(ErrorCode::kUsage, "max_memory", "{} bytes are less than none", asked.max_memory);
  }
  return request;
}

int64_t running_bytes(const ModelMemory& memory) { return memory.running(); }

// What the caller allows counts everything; what is free, only what is not held already.
void check_room(const SharedModel& model, const Worker& worker, const ModelMemory& planned,
                int64_t limit) {
  if (limit > 0) return check_memory(model.loaded(), planned, limit);
  if (running_bytes(planned) <= worker.held) return;
  ModelMemory more = planned;
  if (model.loaded().context == nullptr) more.owned_weights = 0;
  check_memory(model.loaded(), more, 0);
}

std::vector<std::string> checked_fallbacks(const SharedModel& model, const Pipeline& pipeline) {
  std::vector<std::string> lines = run_fallbacks(model.loaded(), pipeline);
  if (model.strict() && !lines.empty()) {
    throw Error(ErrorCode::kFallback, "strict", "{}", lines[0]);
  }
  return lines;
}

}  // namespace
}  // namespace halftone::capi

struct halftone_result {
  std::shared_ptr<halftone::capi::SharedModel> model;
  halftone::GenerateRequest request;
  halftone::GenerateSeconds seconds;
  std::vector<halftone::capi::MadePicture> pictures;
  std::vector<std::string> fallbacks;
  std::vector<const char*> fallback_lines;
};

namespace halftone::capi {
namespace {

std::unique_ptr<halftone_result> run(const std::shared_ptr<SharedModel>& model,
                                     const halftone_request& asked) {
  auto result = std::make_unique<halftone_result>();
  result->model = model;
  result->request = request_of(*model, asked);
  start_pool(model->loaded().threads);
  Lease worker(model);
  const ModelMemory planned = plan_generate(*worker->pipeline, result->request);
  check_room(*model, *worker, planned, asked.max_memory);

  Run run(asked.progress, asked.user);
  worker.begin_run();
  const int64_t batches = (asked.count + result->request.batch - 1) / result->request.batch;
  run.report({"text", 0, batches * asked.steps});
  result->seconds = generate(
      *worker->pipeline, result->request, [&](const Progress& progress) { run.report(progress); },
      [&](const GeneratedPicture& made) {
        MadePicture picture{made.latents, made.image, {}, to_rgb(made.image), made.reused[0]};
        for (int i = 0; i < made.latents.shape().rank(); ++i) {
          picture.latent_shape.push_back(made.latents.shape()[i]);
        }
        result->pictures.push_back(std::move(picture));
        run.finish_picture();
      });
  worker.end_run();
  worker->held = std::max(worker->held, running_bytes(planned));
  result->fallbacks = checked_fallbacks(*model, *worker->pipeline);
  for (const std::string& line : result->fallbacks) result->fallback_lines.push_back(line.c_str());
  return result;
}

const MadePicture& picture_of(const halftone_result* result, size_t index) {
  check_not_null(result, "result");
  if (index < result->pictures.size()) return result->pictures[index];
  throw Error(ErrorCode::kUsage, "index", "{} is not below {}, the number of pictures", index,
              result->pictures.size());
}

}  // namespace
}  // namespace halftone::capi

using halftone::capi::check_not_null;
using halftone::capi::guarded;

halftone_status halftone_request_init(const halftone_model* model, halftone_request* request,
                                      size_t size) {
  return guarded([&] {
    check_not_null(model, "model");
    halftone::capi::write_struct(halftone::capi::defaults_of(model->shared->loaded()), request,
                                 size, "request");
    request->size = size;
  });
}

halftone_status halftone_plan(const halftone_model* model, const halftone_request* request,
                              halftone_memory* memory, size_t size) {
  return guarded([&] {
    check_not_null(model, "model");
    const auto asked = halftone::capi::read_struct(
        request, halftone::capi::defaults_of(model->shared->loaded()), "request");
    const halftone::GenerateRequest checked = halftone::capi::request_of(*model->shared, asked);
    halftone::capi::Lease worker(model->shared);
    const halftone::ModelMemory planned = plan_generate(*worker->pipeline, checked);
    halftone_memory out{};
    out.peak = planned.peak();
    out.weights = planned.owned_weights;
    out.values = planned.arena + planned.slots + planned.borders;
    out.scratch = planned.workspace + planned.library;
    out.weights_in_files = planned.file_weights;
    halftone::capi::write_struct(out, memory, size, "memory");
  });
}

halftone_status halftone_generate(const halftone_model* model, const halftone_request* request,
                                  halftone_result** result) {
  return guarded([&] {
    check_not_null(result, "result");
    *result = nullptr;
    check_not_null(model, "model");
    const auto asked = halftone::capi::read_struct(
        request, halftone::capi::defaults_of(model->shared->loaded()), "request");
    *result = halftone::capi::run(model->shared, asked).release();
  });
}

void halftone_result_free(halftone_result* result) { delete result; }

halftone_status halftone_result_describe(const halftone_result* result, halftone_result_info* info,
                                         size_t size) {
  return guarded([&] {
    check_not_null(result, "result");
    halftone_result_info out{};
    out.count = result->pictures.size();
    out.text_seconds = result->seconds.text;
    out.denoise_seconds = result->seconds.denoise;
    out.decode_seconds = result->seconds.decode;
    out.fallback_count = result->fallback_lines.size();
    out.fallbacks = result->fallback_lines.data();
    halftone::capi::write_struct(out, info, size, "info");
  });
}

halftone_status halftone_result_picture(const halftone_result* result, size_t index,
                                        halftone_picture* picture, size_t size) {
  return guarded([&] {
    const halftone::capi::MadePicture& made = halftone::capi::picture_of(result, index);
    halftone_picture out{};
    out.width = made.image.shape()[2];
    out.height = made.image.shape()[1];
    out.seed = result->request.seed + index;
    out.rgb = made.rgb.data();
    out.pixels = made.image.as<float>().data();
    out.latents = made.latents.as<float>().data();
    out.latent_shape = made.latent_shape.data();
    out.latent_rank = made.latent_shape.size();
    halftone::capi::write_struct(out, picture, size, "picture");
  });
}

halftone_status halftone_result_write_png(const halftone_result* result, size_t index,
                                          const char* path) {
  return guarded([&] {
    const halftone::capi::MadePicture& made = halftone::capi::picture_of(result, index);
    check_not_null(path, "path");
    if (*path == '\0') throw halftone::Error(halftone::ErrorCode::kUsage, "path", "is empty");
    write_png(path, made.image,
              told_picture_text(picture_text(result->model->loaded(), result->request,
                                             result->model->hash(), static_cast<int>(index)),
                                result->request, made.reused));
  });
}
