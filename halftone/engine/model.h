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
  // Blocks of the denoiser that stay in the CPU's memory and are streamed to the device in every
  // run: so many (block_plan.h), or kAllBlocks. And whether all blocks of text encoders are.
  int stream_blocks = 0;
  bool stream_encoders = false;
  // The format of the weights of the text encoders' linears, and what encoders compute in where
  // that is not `activations`. Without a format weights are as their files have them.
  std::optional<Format> text_format;
  std::optional<DType> text_activations;
  bool compile = true;  // fuse and merge; on devices also record
  // Files are read and checked, but no weights are placed yet: Model::with_placed does that.
  bool bare = false;
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

// What a text encoder runs in.
struct EncoderReport {
  std::string folder;
  QuantizeReport quantized;
  std::map<std::string, int> formats;  // format -> linears whose weights are in it
};

struct LoadReport {
  std::vector<EncoderReport> encoders;
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
  // blocks of the first of them are streamed. `memory` is the device's, or stands for it in plans;
  // null on the CPU.
  ModelPart(Weights weights, std::span<const std::shared_ptr<Graph>> graphs, CompileOptions compile,
            const LoadOptions& options, DeviceContext* memory, int stream_blocks = 0);

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

// Parts whose weights are in memory where the model runs.
struct PlacedParts {
  bool text = false;     // encoders
  bool picture = false;  // denoiser and codec
};

// An adapter, ready to be attached to rows of any job.
class Adapter {
 public:
  Adapter(LoraAdapter adapter, const ModelParts& model, DeviceContext* device);
  const LoraAdapter& lora() const { return lora_; }
  // Where they run.
  Weights weights(size_t slot, AdaptedPart part = kDenoiserPart) const;
  Weights all_weights() const;  // of all parts, under names that tell them apart

 private:
  LoraAdapter lora_;
  std::map<AdaptedPart, Weights> first_;  // as slot 0
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

  DType text_activations() const {
    return options_.text_activations.value_or(options_.activations);
  }
  PlacedParts placed() const { return {has_encoders(), denoiser_weights_ != nullptr}; }
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
  // This model with these parts placed and no others. Those that it has already are shared; others
  // are made from the files, and converted anew. What it has no longer is free once nobody else has
  // it: another model, or a program. Not after with_recipe or with_weights.
  std::shared_ptr<const Model> with_placed(PlacedParts parts) const;
  // This model without encoders, whose linears' weights will be in this format when they are
  // placed; none: as their files have them.
  std::shared_ptr<const Model> with_text_format(const std::optional<Format>& format) const;
  // This model with all parts placed in memory that is only imagined: for plans.
  std::shared_ptr<const Model> imagined() const;
  bool is_imagined() const { return imagined_; }
  // This model with so many blocks of the denoiser streamed, which is placed anew.
  std::shared_ptr<const Model> with_streamed_blocks(int count) const;
  // The same with all blocks of text encoders.
  std::shared_ptr<const Model> with_streamed_encoders() const;
  // What a recipe would convert and keep, without converting anything.
  QuantizeReport plan_recipe(const QuantizeRecipe& recipe) const;

 private:
  Model() = default;
  std::shared_ptr<Graph> whole_graph() const;
  std::shared_ptr<Graph> smallest_graph() const;  // with the cuts
  // What encoders are to run in, and their weights as they lie in the files.
  void read_encoder(size_t index);
  void choose_text_formats();
  void read_denoiser();
  void cut_weights(Weights& weights);
  void read_codec();
  // How a part's graphs are compiled, and what becomes of its weights as they lie in the files.
  struct Making {
    QuantizeReport quantized = {};
    std::optional<QuantizeRecipe> recipe = {};
    InputCuts cuts = {};
    int stream_blocks = 0;
  };
  std::shared_ptr<const ModelPart> make_part(const Weights& originals, const Making& making,
                                             std::span<const std::shared_ptr<Graph>> graphs) const;
  void place_text();
  void place_picture();
  void report_formats(const QuantizeReport& quantized);

  ModelParts parts_;
  LoadOptions options_;
  LoadReport report_;
  std::vector<std::shared_ptr<const Checkpoint>> files_;  // encoders, denoiser, codec
  struct Encoder {
    Weights originals;  // as they lie in the file
    std::optional<QuantizeRecipe> recipe;
  };
  std::vector<Encoder> texts_;
  std::vector<std::shared_ptr<const ModelPart>> encoders_;
  std::shared_ptr<const ModelPart> denoiser_weights_, codec_weights_;
  InputCuts cuts_;
  // As they lie in the files, of the denoiser and the codec.
  Weights originals_, codec_originals_;
  std::optional<QuantizeRecipe> recipe_;  // of the denoiser
  bool imagined_ = false;
};

}  // namespace halftone
