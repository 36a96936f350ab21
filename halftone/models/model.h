// What a sampler needs of a diffusion model, whatever its family.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "halftone/kernels/kernels.h"
#include "halftone/passes/quantize.h"
#include "halftone/tensor/quantized_tensor.h"
#include "halftone/tensor/tensor.h"

namespace halftone {

// A prompt as the denoiser takes it.
struct Condition {
  Tensor states;  // F32 [tokens, features]
};

// Memory of a model while it generates.
struct ModelMemory {
  int64_t file_weights = 0;   // weights read in place from their files
  int64_t owned_weights = 0;  // weights converted on loading, and adapters
  int64_t arena = 0;          // values while running, of the largest program
  int64_t workspace = 0;      // scratch memory of kernels, of the largest program
  int64_t borders = 0;        // what the largest program is given and gives back
  int64_t process = 0;        // what the process holds besides, where that is known
  // What the process needs besides the files that it maps.
  int64_t peak() const { return owned_weights + arena + workspace + borders + process; }
};

// An adapter to apply, and how strongly.
struct LoraChoice {
  std::string file;
  float strength = 1;
};

struct LoadOptions {
  DType activations = DType::kF32;
  // Where the weights are quantized already: run in their format, with activations in BF16.
  bool automatic = false;
  // The format of the denoiser's block linears; without one, that of its weights as stored.
  std::optional<Format> format;
  // The same, linear by linear; over `format`.
  std::optional<QuantizeRecipe> recipe;
  // Where the weights are quantized already: quantize activations too, as the format asks, or
  // compute with what the weights stand for.
  bool quantize_activations = true;
  bool compile = true;  // fuse
  std::vector<LoraChoice> loras;
  const Kernels* kernels = nullptr;
  Stream stream;
  std::function<bool()> cancelled;  // asked between kernels; true ends a run
};

// What became of an adapter's file.
struct LoraReport {
  std::string file;
  int matched = 0;                     // linears that it changes
  std::vector<std::string> unmatched;  // keys that match nothing
};

struct LoadReport {
  QuantizeReport quantized;            // of the denoiser
  std::map<std::string, int> formats;  // format -> linears that run in it
  bool stored = false;                 // some weights were quantized in the file
  bool calibrated = false;             // inputs have static scales
  std::vector<LoraReport> loras;
};

// A linear of the denoiser that a recipe may convert. Those of one group read the same input.
struct LinearInfo {
  std::string weight;
  Shape shape;
  int group = 0;
};
// Another way than the plain one to convert a weight.
using WeightQuantizer =
    std::function<QuantizedTensor(const std::string& name, const Tensor& weight, const Format&)>;
// Told the input of each linear before it runs, as rows in the CPU's memory.
using LinearObserver = std::function<void(const std::string& weight, const ConstView& input)>;

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

class DiffusionModel {
 public:
  virtual ~DiffusionModel() = default;

  virtual std::string family() const = 0;
  virtual const LoadReport& load_report() const = 0;
  // Latents [1, C, h, w] of a picture; sizes that the model does not allow are an Error.
  virtual Shape latent_shape(int64_t width, int64_t height) const = 0;
  virtual int64_t image_tokens(const Shape& latents) const = 0;

  // Memory for `rows` latents of this shape at a time, each with one of these prompts. Prompts that
  // have more tokens than the model takes are an Error. Nothing is run or allocated.
  virtual ModelMemory plan(const Shape& latents, int64_t rows,
                           std::span<const std::string> prompts) = 0;

  virtual Condition encode(const std::string& prompt) = 0;
  // The velocity d latents / d sigma of each row, at a sigma of its own.
  virtual Tensor velocity(const Tensor& latents, std::span<const float> sigmas,
                          std::span<const Condition> conditions) = 0;
  // What every block of the denoiser gives on the way to a velocity, F32, in the order in which
  // they run: for finding where a precision loses.
  virtual NamedTensors block_outputs(const Tensor& latents, std::span<const float> sigmas,
                                     std::span<const Condition> conditions) = 0;
  // Pictures [B, 3, H, W], about -1 to 1.
  virtual Tensor decode(const Tensor& latents) = 0;

  // One strength per adapter, from the next velocity on. Builds nothing again.
  virtual void set_lora_strengths(std::span<const float> strengths) = 0;
  // Graphs that were built and planned so far: shapes that came back cost nothing.
  virtual int programs_built() const = 0;

  virtual std::string hash() const = 0;  // of the checkpoint files

  // What the family's recipe makes of its linears in this format, before anything is measured.
  virtual QuantizeRecipe default_recipe(const Format& format) const = 0;
  // Those that this recipe selects.
  virtual std::vector<LinearInfo> linears() const = 0;
  // Converts the weights anew, from the files as they are. Not for files that are quantized.
  virtual void set_recipe(const std::optional<QuantizeRecipe>& recipe,
                          const WeightQuantizer& quantizer = {}) = 0;
  // From the next velocity on; an empty one ends it. Needs a model that is not compiled.
  virtual void observe_linears(LinearObserver observer) = 0;
};

}  // namespace halftone
