#include "halftone/engine/picture_text.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>

#include "halftone/base/version.h"
#include "halftone/io/model_hash.h"

namespace halftone {

namespace {

// Everything that a picture follows from and no other entry says.
std::string fingerprint(const Model& model, const GenerateRequest& request, int index) {
  const Shape latents = model.latent_shape(request.width, request.height);
  const Schedule schedule =
      make_schedule(request.scheduler.value_or(model.sampling().scheduler), request.steps,
                    model.denoiser().image_tokens({latents[1], latents[2], latents[3]}));
  std::string all = fmt::format("{} {:a}", model.parts().settings_hash, schedule.initial_scale);
  for (const SamplerStep& step : schedule.steps) {
    all += fmt::format("\n{:a} {:a} {:a}", step.sigma, step.timestep, step.input_scale);
    for (const float factor : step.latents) all += fmt::format(" {:a}", factor);
    for (const Combination& memory : step.memory) {
      for (const float factor : memory) all += fmt::format(" {:a}", factor);
    }
  }
  for (const AdapterChoice& choice : request.adapters) {
    all += "\n" + choice.adapter->lora().report().hash;
  }
  if (request.noise) {
    const auto bytes = request.noise->rows(index, index + 1).bytes();
    all += "\n" + text_hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  return text_hash(all);
}

constexpr const char* kReused = "reused_steps";

}  // namespace

bool is_outcome(const std::string& entry) { return entry == "Software" || entry == kReused; }

PngText told_picture_text(PngText text, const GenerateRequest& request,
                          const std::vector<int>& reused) {
  if (request.cache > 0) text.emplace_back(kReused, fmt::format("{}", fmt::join(reused, ",")));
  return text;
}

std::vector<int> reused_steps(const PngText& text) {
  std::vector<int> steps;
  for (const auto& [key, value] : text) {
    if (key != kReused) continue;
    for (const char *at = value.data(), *end = at + value.size(); at < end;) {
      int step = 0;
      const auto [next, error] = std::from_chars(at, end, step);
      if (error != std::errc()) break;
      steps.push_back(step);
      at = next + 1;  // a comma
    }
  }
  return steps;
}

PngText picture_text(const LoadedModel& loaded, const GenerateRequest& request,
                     const std::string& model_hash, int index) {
  PngText text = {{"Software", std::string("halftone ") + version()},
                  {"prompt", request.prompt},
                  {"negative", request.negative.value_or("")},
                  {"seed", std::to_string(request.seed + static_cast<uint64_t>(index))},
                  {"steps", std::to_string(request.steps)},
                  {"guidance", fmt::format("{}", request.guidance)},
                  {"precision_asked", loaded.precision.asked},
                  {"precision_used", loaded.precision.used},
                  {"model_hash", model_hash}};
  if (loaded.tells_text_precision()) {
    text.emplace_back("text_precision", loaded.text_precision.used);
  }
  if (loaded.tiles) {
    text.emplace_back("vae_tiles", fmt::format("{} {}", loaded.tiles->side, loaded.tiles->overlap));
  }
  // Which is not the same as none everywhere.
  if (request.negative && request.negative->empty()) text.emplace_back("negative_given", "empty");
  if (request.true_cfg > 0) text.emplace_back("true_cfg", fmt::format("{}", request.true_cfg));
  if (request.cache > 0) text.emplace_back("cache", fmt::format("{}", request.cache));
  if (!request.skip.layers.empty()) {
    text.emplace_back("skip_layers", layers_text(request.skip.layers));
    text.emplace_back("skip_layer_scale", fmt::format("{}", request.skip.scale));
  }
  if (const OriginalPicture& original = request.original; original.given()) {
    const PictureSizes told = told_by(request).sizes;
    text.emplace_back("original_size", original_size_text(told));
    text.emplace_back("crop", crop_text(told));
  }
  for (const AdapterChoice& choice : request.adapters) {
    const std::filesystem::path file = choice.adapter->lora().report().file;
    text.emplace_back("lora", fmt::format("{}:{}", file.filename().string(), choice.strength));
  }
  text.emplace_back("settings", fingerprint(*loaded.model, request, index));
  return text;
}

}  // namespace halftone
