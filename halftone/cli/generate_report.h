// What `halftone generate` tells about a run: text, JSON, and the PNG's text fields.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "halftone/diffusion/generate.h"
#include "halftone/io/png.h"

namespace halftone::cli {

struct GenerateOptions {
  std::string model, base, prompt, negative, size = "1024x1024";
  std::string precision = "auto", compile = "auto", device = "auto", max_memory;
  std::string noise, save_latents, output;
  std::vector<std::string> loras;
  int steps = 8, count = 1, batch = 1, threads = 0;
  float guidance = 0;
  uint64_t seed = 0;
  bool json = false, strict = false;
};

// What was asked for, what ran, and why.
struct Choice {
  std::string asked, used, how, why;
};

struct GenerateOutcome {
  GenerateResult result;
  std::vector<std::filesystem::path> files;
  std::string family, hash;
  Choice precision, compile, device;
  std::vector<LoraChoice> loras;
  LoadReport load_report;
  std::vector<std::string> fallbacks;  // one line each
  ModelMemory planned;
  int64_t measured = 0;
  double load = 0, total = 0;
};

PngText png_text(const GenerateOptions& options, const GenerateOutcome& outcome, int index);
nlohmann::ordered_json to_json(const GenerateOptions& options, const GenerateOutcome& outcome);
void print_plan(const ModelMemory& memory);
void print_summary(const GenerateOptions& options, const GenerateOutcome& outcome);

}  // namespace halftone::cli
