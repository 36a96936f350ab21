// What `halftone generate` tells about a run: text and JSON.
#pragma once

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halftone/cli/model_options.h"
#include "halftone/engine/arrange.h"

namespace halftone::cli {

struct GenerateOptions {
  ModelOptions model;
  std::string prompt, size;  // an empty size is the model's
  std::optional<std::string> negative;
  std::string noise, save_latents, output, scheduler;
  std::string prompts;  // a file of them; output is a folder then
  bool overwrite = false, skip_wrong = false;
  int steps = 0, count = 1, batch = 1;  // 0 steps: the model's
  float guidance = -1;                  // negative: the model's
  float true_cfg = 0;
  std::string cache = "off";  // a step cache: off, auto or its threshold
  double cache_ssim = 0.95;   // that auto keeps to
  std::string skip_layers;
  std::string original_size, crop;
  float skip_layer_scale = SkipLayers{}.scale;
  uint64_t seed = 0;
  bool json = false;
  std::string vae_tiles = "auto";
};

struct GenerateOutcome {
  std::vector<std::string> notes;  // of adapters
  LoadedModel loaded;
  GenerateSeconds seconds;
  std::vector<std::filesystem::path> files;
  std::string hash;
  ArrangedMemory kept;
  ModelMemory planned;
  int64_t measured = 0;       // where the model runs
  int64_t host_measured = 0;  // on the host, where that is elsewhere
  double total = 0;
  float cache = 0;                                      // the threshold of the step cache
  std::string cache_told;                               // how auto chose it
  std::optional<PictureSizes> sizes;                    // that a network was told, if it reads them
  std::vector<std::array<std::vector<int>, 2>> reused;  // of each picture, as Job::reused has them
};

// That --cache says, where it is not auto; 0: off.
float cache_threshold(const std::string& text);

nlohmann::ordered_json to_json(const GenerateOptions& options, const GenerateOutcome& outcome);
// To stdout, or to stderr where a picture goes there.
void print_plan(std::FILE* to, const ArrangedMemory& kept, const LoadedModel& loaded);
void print_summary(std::FILE* to, const GenerateOptions& options, const GenerateOutcome& outcome);

}  // namespace halftone::cli
