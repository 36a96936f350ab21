#include "halftone/engine/skip_layers.h"

#include <fmt/ranges.h>

#include <charconv>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/engine/job.h"

namespace halftone {

bool SkipLayers::at(int step, int steps) const {
  constexpr double kStart = 0.01, kStop = 0.2;
  return !layers.empty() && step > steps * kStart && step < steps * kStop;
}

std::set<int64_t> parse_layers(const std::string& text, const char* field) {
  std::set<int64_t> layers;
  const char *at = text.data(), *const end = at + text.size();
  while (at != end) {
    int64_t layer = -1;
    const auto [stop, error] = std::from_chars(at, end, layer);
    const bool more = stop != end && *stop == ',' && stop + 1 != end;
    if (error != std::errc() || layer < 0 || (stop != end && !more)) {
      throw Error(ErrorCode::kUsage, field, "'{}' is no list of numbers such as 7,8,9",
                  printable(text));
    }
    layers.insert(layer);
    at = more ? stop + 1 : stop;
  }
  return layers;
}

std::string layers_text(const std::set<int64_t>& layers) {
  return fmt::format("{}", fmt::join(layers, ","));
}

void check_skip_layers(const JobRequest& request, const ModelParts& model) {
  const SkipLayers& skip = request.skip;
  if (!(skip.scale >= 0 && skip.scale <= 100)) {
    throw Error(ErrorCode::kUsage, "skip_layer_scale", "{} is not from 0 to 100", skip.scale);
  }
  if (skip.layers.empty()) {
    if (skip.scale == SkipLayers{}.scale) return;
    throw Error(ErrorCode::kUsage, "skip_layer_scale", "does nothing without skip_layers");
  }
  const auto fail = [](const std::string& why) {
    throw Error(ErrorCode::kUsage, "skip_layers", "{}", why);
  };
  const int64_t blocks = model.denoiser->skippable_blocks();
  if (blocks == 0) fail(fmt::format("{} has no blocks to leave out", model.family->title));
  for (const int64_t layer : skip.layers) {
    if (layer < 0 || layer >= blocks) {
      fail(fmt::format("{} is none of the model's {} blocks, from 0 to {}", layer, blocks,
                       blocks - 1));
    }
  }
  if (static_cast<int64_t>(skip.layers.size()) == blocks) fail("leaves no block of the model");
  if (!takes_two(request, model.sampling)) fail("does nothing without guidance above 1");
  for (int step = 0; step < request.steps; ++step) {
    if (skip.at(step, request.steps)) return;
  }
  fail(fmt::format("does nothing in {} steps: it is for those between 1 % and 20 % of the way",
                   request.steps));
}

}  // namespace halftone
