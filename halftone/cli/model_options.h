// What commands that run a model have in common: which model, in which precision, on which device,
// and what became of that.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "halftone/cli/cli.h"
#include "halftone/diffusion/generate.h"
#include "halftone/runtime/backend.h"

namespace halftone::cli {

struct ModelOptions {
  std::string model, base;
  std::string precision = "auto", compile = "auto", device = "auto", max_memory;
  std::vector<std::string> loras;
  int threads = 0;
  bool strict = false;
  double threshold = 0.99;  // of a certificate's velocity cosine, for --precision auto
};
void add_model_options(CLI::App& command, ModelOptions& options);

// How pictures are sampled; what is not given is the model's.
struct SamplingOptions {
  std::string size;
  int steps = 0;
  float guidance = -1;
  uint64_t seed = 0;
};
void add_sampling_options(CLI::App& command, SamplingOptions& options);

// These, and the lines of a file that are not empty, where one is given; one without any is an
// Error.
std::vector<std::string> gather_prompts(std::vector<std::string> prompts, const std::string& file);

// The files and folders that these options read.
std::vector<std::filesystem::path> inputs_of(const ModelOptions& options);

// What a model's folder recommends, in halftone.json; otherwise what its family usually takes.
struct ModelDefaults {
  int64_t width = 1024, height = 1024;
  int steps = 8;
  float guidance = 0;
};

// What was asked for, what ran, and why.
struct Choice {
  std::string asked, used, how, why;
};
nlohmann::ordered_json to_json(const Choice& choice);

struct LoadedModel {
  std::string path;  // of the model; the one that comes with the program where none was given
  std::shared_ptr<DeviceContext> context;  // null on the CPU; outlives the model
  std::unique_ptr<DiffusionModel> model;
  FlowMatchConfig schedule;
  ModelDefaults defaults;
  Choice precision, compile, device;
  std::vector<LoraChoice> loras;
  int threads = 1, threads_asked = 1;
  std::vector<std::string> fallbacks;  // one line each
  double seconds = 0;
};
// With --strict a fallback is an Error. Programs of the model end where the context says so.
LoadedModel load(const ModelOptions& options, const Context& context);

// After a run: what the device did in another way than it should have. With --strict an Error.
void add_device_fallbacks(LoadedModel& loaded, bool strict);

// An Error where a run needs more memory than there is, or than --max-memory allows.
void check_memory(const LoadedModel& loaded, const ModelMemory& planned,
                  const std::string& max_memory);

// Where none are given: those that calibration does not see (prompt_sets.h).
std::vector<std::string> usual_prompts();
// "nvfp4", or "fp8 and nvfp4": of a load report.
std::string format_names(const std::map<std::string, int>& formats);
// What these options ask of this model.
ModelDefaults sampling_of(const SamplingOptions& options, const ModelDefaults& defaults);

}  // namespace halftone::cli
