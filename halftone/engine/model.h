// A loaded model: weights on their device, the parts that build graphs, and what became of the
// choices. Immutable and shared: threads use one Model through Pipelines of their own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "halftone/engine/model_parts.h"
#include "halftone/passes/compile.h"
#include "halftone/runtime/block_plan.h"
#include "halftone/runtime/program.h"

namespace halftone {

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
  // Patterns of weights that are cut where their input is several values side by side.
  std::vector<std::string> cut_inputs = {};
  bool compile = true;  // fuse and merge; on devices also record
  // Blocks of the denoiser that stay in the CPU's memory and are streamed to the device in every
  // run: so many (block_plan.h), or kAllBlocks. And whether all blocks of text encoders are.
  int stream_blocks = 0;
  bool stream_encoders = false;
  const Kernels* kernels = nullptr;
  Stream stream;
};

// Blocks of a network that are streamed.
struct StreamReport {
  int blocks = 0, of = 0;  // so many, and so many there are
  int64_t bytes = 0;       // in the CPU's memory
  int64_t resident_blocks = 0,
          slots = 0;  // bytes on the device: other blocks, and for streamed ones
};

struct LoadReport {
  QuantizeReport quantized;            // of the denoiser
  std::map<std::string, int> formats;  // format -> linears that run in it
  bool stored = false;                 // some weights were quantized in the file
  bool calibrated = false;             // inputs have static scales
  StreamReport streamed;               // of the denoiser
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

// Weights of a network where they run, and how its graphs are compiled for them.
class ModelPart {
 public:
  // `graphs` show which weights are used together: on a device some lie together. So many of the
  // blocks of the first of them are streamed.
  ModelPart(Weights weights, std::span<const std::shared_ptr<Graph>> graphs, CompileOptions compile,
            const LoadOptions& options, int stream_blocks = 0);

  const Weights& weights() const { return weights_; }
  // Options that say which weights lie together.
  CompileOptions compile_options() const;
  const std::vector<WeightStack>& stacks() const { return stacks_; }
  const StreamReport& streamed() const { return streamed_; }
  // On a device, as it was loaded: bytes of each block, in order, for stream_blocks_within.
  const std::vector<int64_t>& block_bytes() const { return block_bytes_; }
  // With these weights instead of those of the same names, and another recipe. The rest is shared.
  // Not where blocks are streamed.
  ModelPart with(const Weights& changed, std::optional<QuantizeRecipe> recipe,
                 const LoadOptions& options) const;

 private:
  ModelPart() = default;
  void index_stacks();
  std::vector<WeightBlock> choose_streamed(const Graph& graph, int count);

  Weights weights_;
  CompileOptions compile_;
  std::vector<WeightStack> stacks_;  // weights that lie together on a device
  std::map<std::string, size_t> stack_of_;
  StreamReport streamed_;
  std::vector<int64_t> block_bytes_;
};

// An adapter, ready to be attached to rows of any job.
class Adapter {
 public:
  Adapter(LoraAdapter adapter, DeviceContext* device);
  const LoraAdapter& lora() const { return lora_; }
  Weights weights(size_t slot) const;  // where they run

 private:
  LoraAdapter lora_;
  Weights first_;  // as slot 0
};

class Model {
 public:
  // Everything that can be wrong with the files is wrong here, before any long work.
  static std::shared_ptr<const Model> load(const FoundModel& found, const LoadOptions& options);
  static std::shared_ptr<const Model> load(const ModelParts& parts, const LoadOptions& options);

  const ModelParts& parts() const { return parts_; }
  const Family& family() const { return *parts_.family; }
  const Denoiser& denoiser() const { return *parts_.denoiser; }
  const Conditioner& conditioner() const { return *parts_.conditioner; }
  const Codec& codec() const { return *parts_.codec; }
  const Sampling& sampling() const { return parts_.sampling; }
  const LoadOptions& options() const { return options_; }
  const LoadReport& report() const { return report_; }
  std::string hash() const;  // of the checkpoint files
  // Of those of the text encoders, and of the codec.
  std::string encoders_hash() const;
  std::string codec_hash() const;

  bool has_encoders() const { return encoders_.empty() || encoders_[0] != nullptr; }
  const ModelPart& encoder_part(size_t index) const { return *encoders_[index]; }
  const ModelPart& denoiser_part() const { return *denoiser_weights_; }
  const ModelPart& codec_part() const { return *codec_weights_; }
  // Of the denoiser, as they lie in the file.
  const Weights& originals() const { return originals_; }
  // Weights that are cut, here or in the file: their parts are linears by themselves.
  const InputCuts& cuts() const { return cuts_; }
  // All that could be, of what the family's recipe selects.
  InputCuts cuttable() const;

  Shape latent_shape(int64_t width, int64_t height) const {
    return parts_.latent_shape(width, height);
  }

  std::shared_ptr<const Adapter> load_adapter(const std::string& file) const;

  // What the family's recipe selects.
  std::vector<LinearInfo> linears() const;
  // The same as the family has them, where some are cut: what adapters are beside.
  std::vector<LinearInfo> whole_linears() const;
  // This model with linears of the denoiser in other formats. Weights that stay as they are are
  // shared, and nothing is read anew. Not for files that are quantized.
  std::shared_ptr<const Model> with_recipe(const std::optional<QuantizeRecipe>& recipe,
                                           const WeightQuantizer& quantizer = {}) const;
  // This model with these weights of the denoiser, in the CPU's memory, instead of its own; linears
  // that it runs in a format are converted to it.
  std::shared_ptr<const Model> with_weights(const Weights& weights) const;
  // The same without encoders of text, whose memory is free once no one else has them. Prompts are
  // to be known by then: Pipeline::remember.
  std::shared_ptr<const Model> without_encoders() const;
  // What a recipe would convert and keep, without converting anything.
  QuantizeReport plan_recipe(const QuantizeRecipe& recipe) const;

 private:
  Model() = default;
  std::shared_ptr<Graph> whole_graph() const;
  std::shared_ptr<Graph> smallest_graph() const;  // with the cuts
  std::shared_ptr<const ModelPart> load_part(const Checkpoint& file,
                                             std::span<const std::shared_ptr<Graph>> graphs,
                                             const WeightNames& names, int stream_blocks = 0) const;
  void load_denoiser();
  void cut_weights(Weights& weights);
  void report_formats(const QuantizeReport& quantized);

  ModelParts parts_;
  LoadOptions options_;
  LoadReport report_;
  std::vector<std::shared_ptr<const Checkpoint>> files_;  // encoders, denoiser, codec
  std::vector<std::shared_ptr<const ModelPart>> encoders_;
  std::shared_ptr<const ModelPart> denoiser_weights_, codec_weights_;
  InputCuts cuts_;
  Weights originals_;  // of the denoiser, as they lie in the file
};

}  // namespace halftone
