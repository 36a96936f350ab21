// The engine: devices, and models on them. Safe to use from many threads.
//
//   Engine engine;
//   LoadedModel loaded = engine.load({.path = "Z-Image-Turbo", .precision = "fp8"});
//   GenerateRequest request = loaded.request("a lighthouse at dusk");
//   GenerateResult result = generate(*loaded.pipeline, request, [](const Progress&) {});
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "halftone/engine/generate.h"
#include "halftone/engine/precision.h"
#include "halftone/runtime/backend.h"

namespace halftone {

// An adapter to apply, and how strongly.
struct LoraChoice {
  std::string file;
  float strength = 1;
};

// Which model, and how it is to run. Errors name these fields.
struct ModelSpec {
  std::string path;  // a folder in diffusers layout, or a denoiser as a single file
  std::string base;  // with a single file: the folder of what it does not hold
  std::string precision = "auto", compile = "auto", device = "auto";
  // Blocks of the denoiser that are streamed to a GPU from the CPU's memory: a number, "all",
  // "off", or "auto": as many as arrange() needs (arrange.h), otherwise none.
  std::string stream_blocks = "auto";
  bool stream_encoders = false;  // all blocks of text encoders are
  // Weights, by patterns, that are cut where their input is several values side by side, so that
  // each of these has scales of its own. Those of quantized files are cut as they are stored.
  std::vector<std::string> cut_inputs = {};
  // Of the text encoders: auto is as their files have them, or the name of a format.
  std::string text_precision = "auto";
  std::vector<LoraChoice> loras;
  int threads = 0;                  // 0: all
  bool bare = false;                // no weights are placed before arrange() (arrange.h)
  bool strict = false;              // a fallback is an Error
  double threshold = 0.99;          // of a certificate's velocity cosine, for precision auto
  std::function<bool()> cancelled;  // asked between kernels; true ends a run
};

struct LoadedModel {
  std::string path;
  std::shared_ptr<DeviceContext> context;  // null on the CPU; outlives the model
  std::shared_ptr<const Model> model;
  std::unique_ptr<Pipeline> pipeline;
  Sampling sampling;  // the family's, and what the folder says of itself
  Choice precision, text_precision, compile, device, stream_blocks;
  DeviceInfo device_info;
  AdapterChoices adapters;
  bool takes_turns = false;       // as Pipeline has it
  std::optional<TileSize> tiles;  // the same
  int threads = 1, threads_asked = 1;
  std::vector<std::string> fallbacks;  // one line each
  std::function<bool()> cancelled;     // as in its specification
  double seconds = 0;

  // Whether the text encoders run otherwise than their files have them.
  bool tells_text_precision() const;

  // Another worker on this model.
  std::unique_ptr<Pipeline> make_pipeline(
      std::shared_ptr<Arena> arena = std::make_shared<Arena>()) const;

  // With this model's own size, steps, guidance, scheduler and adapters.
  GenerateRequest request(const std::string& prompt) const;
};

class Engine {
 public:
  // With `strict` a fallback is an Error. Weights are in memory once: whoever loads what another
  // uses already, in the same way and from the same files, shares its model.
  LoadedModel load(const ModelSpec& spec);
  // What a device that is asked for stands for; the same one for everyone.
  Backend backend(const std::string& device);

 private:
  std::mutex mutex_;
  std::map<std::string, Backend> backends_;
  // Those that someone uses, by everything that they follow from.
  std::map<std::string, std::weak_ptr<const Model>> models_;
};

// The model that comes with the program: installed beside it, or in the source tree that it was
// built in. Empty where there is none.
std::string default_model();

// An Error where a run needs more memory than there is, or than `limit` bytes; 0: no limit.
void check_memory(const LoadedModel& loaded, const ModelMemory& planned, int64_t limit);

// What has become of blocks that were to be streamed to a device, as a choice.
void tell_streamed(const StreamReport& streamed, Choice& choice);

// Adapters that were trained beside another base than this, or another format of it, a line each.
std::vector<std::string> adapter_notes(const LoadedModel& loaded, const std::string& model_hash);

// After a run: what was done in another way than it should have been.
std::vector<std::string> run_fallbacks(const LoadedModel& loaded, const Pipeline& pipeline);
inline std::vector<std::string> run_fallbacks(const LoadedModel& loaded) {
  return run_fallbacks(loaded, *loaded.pipeline);
}

}  // namespace halftone
