// What commands that run a model have in common: which model, in which precision, on which device,
// and what became of that.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "halftone/cli/cli.h"
#include "halftone/engine/engine.h"
#include "halftone/runtime/collective.h"

namespace halftone::cli {

struct ModelOptions {
  std::string model, base;
  std::string precision = "auto", compile = "auto", device = "auto", max_memory;
  std::string stream_blocks = "auto", text_precision = "auto";
  std::vector<std::string> loras;
  int threads = 0;
  bool strict = false;
  double threshold = 0.99;  // of a certificate's velocity cosine, for --precision auto
};
// Which model, and how it runs.
void add_base_options(CLI::App& command, ModelOptions& options);
// And adapters, and what --precision auto trusts.
void add_model_options(CLI::App& command, ModelOptions& options);

// How pictures are sampled; what is not given is the model's.
struct SamplingOptions {
  std::string size, scheduler;
  int steps = 0;
  float guidance = -1;
  uint64_t seed = 0;
};
void add_scheduler_option(CLI::App& command, std::string& scheduler);
void add_sampling_options(CLI::App& command, SamplingOptions& options);

// These, and the lines of a file that are not empty, where one is given; one without any is an
// Error.
std::vector<std::string> gather_prompts(std::vector<std::string> prompts, const std::string& file);

// The files and folders that these options read.
std::vector<std::filesystem::path> inputs_of(const ModelOptions& options);

// What these flags ask of the engine. Programs of the model end where the context says so.
ModelSpec spec_of(const ModelOptions& options, const Context& context);
// Processes of one machine share its cores, unless OMP_NUM_THREADS says otherwise, and its GPUs.
void share_machine(const Collective& processes, ModelOptions& options);

// With --strict a fallback is an Error. Programs of the model end where the context says so.
LoadedModel load(const ModelOptions& options, const Context& context);

// The same with no weights placed yet: for arrange() (arrange.h).
LoadedModel load_bare(const ModelOptions& options, const Context& context);

// After a run: what the device did in another way than it should have. With --strict an Error.
void add_device_fallbacks(LoadedModel& loaded, bool strict);

// An Error where a run needs more memory than there is, or than --max-memory allows.
void check_memory(const LoadedModel& loaded, const ModelMemory& planned,
                  const std::string& max_memory);

// Where none are given: those that calibration does not see (prompt_sets.h).
std::vector<std::string> usual_prompts();
// What these options ask of this model.
Sampling sampling_of(const SamplingOptions& options, const Sampling& usual);

}  // namespace halftone::cli
