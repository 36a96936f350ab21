// What a model family is to everyone else: a row of a table (families.h), and three parts that
// build graphs and prepare their inputs. Parts hold configs and tokenizers, no weights and no
// state, so that threads may share them.
#pragma once

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/diffusion/guidance.h"
#include "halftone/diffusion/scheduler.h"
#include "halftone/graph/graph.h"
#include "halftone/models/lora.h"
#include "halftone/models/weights.h"
#include "halftone/passes/quantize.h"

namespace halftone {

// Where the parts of a model lie.
struct ModelFiles {
  std::filesystem::path base;      // a folder in diffusers layout
  std::filesystem::path denoiser;  // a file that stands for the denoiser's folder; empty: none
  // What that file holds besides: the parts' folders, which `base` has no weights in, and what the
  // names of their tensors begin with.
  std::map<std::string, std::string, std::less<>> in_file = {};

  std::filesystem::path of(std::string_view part) const { return base / part; }
  bool holds(std::string_view part) const { return in_file.find(part) != in_file.end(); }
  // Where a part's weights are: its folder, or the file.
  std::filesystem::path weights(std::string_view part) const {
    return holds(part) ? denoiser : of(part);
  }
  std::string within(std::string_view part) const {
    return holds(part) ? in_file.find(part)->second : "";
  }
};

using NamedTensors = std::map<std::string, Tensor>;

// What a picture was before it was cropped, and what it is.
struct PictureSizes {
  int64_t original_height = 0, original_width = 0;
  int64_t top = 0, left = 0;  // of the crop
  int64_t height = 0, width = 0;

  // Of a picture that was never cropped.
  static PictureSizes of(int64_t width, int64_t height) {
    return {height, width, 0, 0, height, width};
  }
  Tensor tensor() const;  // as a Condition has it
};

// A prompt and whatever else a denoiser is told, as it takes them: tensors by name, without a
// dimension for rows. "text" [tokens, features] is there always; vectors [width] of the prompt as a
// whole, such as "pooled", where a family has them.
using Condition = NamedTensors;
// In a Condition of a network that reads it: the strength of guidance, F32 [1].
inline constexpr const char* kGuidanceOfCondition = "guidance";
// The same of a network that was trained on cropped pictures of many sizes, and is told of them:
// F32 [6], PictureSizes in their order.
inline constexpr const char* kSizesOfCondition = "sizes";
using VectorWidths = std::map<std::string, int64_t>;  // by name

// That tensor of every row, alike in shape: [rows, ...].
Tensor stacked(std::span<const Condition* const> rows, const std::string& name);

struct BuildOptions {
  DType activations = DType::kF32;  // F32 or BF16
  bool tap_blocks = false;          // make every block's result an output
  bool mark_ends = false;           // make outputs of where the blocks end (nn/block_ends.h)
  // Blocks, by number, that the prediction is made without.
  std::set<int64_t> skip_blocks = {};
};

// What a denoiser's graph is built for.
struct DenoiserShape {
  int64_t rows = 1;
  Shape latents;            // of one row: [C, h, w]
  int64_t text_tokens = 0;  // of the longest row, as it is padded
  bool ragged = false;      // rows have texts of different lengths
  std::string str() const;
};

// The network that predicts. Its graphs have the inputs "latents" [rows, ...] and "time" [rows],
// besides those of `inputs`, and the output "sample": the prediction that the scheduler takes.
class Denoiser {
 public:
  virtual ~Denoiser() = default;

  virtual std::string_view folder() const = 0;  // "transformer"
  virtual int64_t channels() const = 0;         // of the sampler's latents
  virtual int64_t patch() const = 0;            // positions of latents that make a token, each way
  virtual int64_t text_features() const = 0;    // of "text" in a Condition
  // Whether it was taught to predict as if guided, and is told by how much.
  virtual bool reads_guidance() const { return false; }
  virtual bool reads_sizes() const { return false; }   // PictureSizes
  virtual VectorWidths vectors() const { return {}; }  // that it takes besides
  // Blocks that a prediction may be made without, numbered from 0; none where it is of no use.
  virtual int64_t skippable_blocks() const { return 0; }
  // Patches that it has positions for, down and across.
  virtual std::array<int64_t, 2> most_patches() const { return {1 << 20, 1 << 20}; }

  // For rows with texts of these lengths.
  virtual DenoiserShape shape(const Shape& latents, std::span<const int64_t> texts) const = 0;
  virtual std::shared_ptr<Graph> build(const DenoiserShape& shape,
                                       const BuildOptions& options) const = 0;
  virtual NamedTensors inputs(const DenoiserShape& shape,
                              std::span<const Condition* const> rows) const = 0;
  // What "time" is at this step.
  virtual float time(const SamplerStep& step) const = 0;

  virtual WeightNames names(const Checkpoint& checkpoint) const = 0;
  virtual QuantizeRecipe recipe(const Format& format) const = 0;  // what it keeps, and why
  virtual LoraTargets lora_targets(const Graph& graph) const = 0;
  // Whether training a whole model changes this weight: tables that were never learnt stay.
  virtual bool trains(const std::string& weight) const {
    (void)weight;
    return true;
  }

  int64_t image_tokens(const Shape& latents) const {
    return latents[1] * latents[2] / (patch() * patch());
  }
  DenoiserShape smallest_shape() const;
};

// A prompt as its encoders take it: ids for each of them.
using PromptTokens = std::vector<std::vector<int32_t>>;

// From prompts to Conditions, through one or more encoders.
class Conditioner {
 public:
  virtual ~Conditioner() = default;

  virtual std::vector<std::string> folders() const = 0;  // of the encoders
  virtual int64_t features() const = 0;                  // of "text"
  virtual VectorWidths vectors() const { return {}; }    // that a Condition holds besides
  // Prompts that are too long, or no text, are Errors.
  virtual PromptTokens tokenize(const std::string& prompt) const = 0;
  // What of a prompt some encoder does not read; empty where all of it is.
  virtual std::string note(const std::string& prompt) const {
    (void)prompt;
    return {};
  }
  virtual int64_t text_tokens(const PromptTokens& prompt) const = 0;  // that a denoiser is given

  // Of encoder `index`: for so many tokens.
  virtual int64_t tokens(size_t index, const PromptTokens& prompt) const = 0;
  virtual std::shared_ptr<Graph> build(size_t index, int64_t tokens,
                                       const BuildOptions& options) const = 0;
  virtual NamedTensors inputs(size_t index, const PromptTokens& prompt) const = 0;
  virtual WeightNames names(size_t index, const Checkpoint& checkpoint) const = 0;
  // Its linears in a format, what of them is kept, and why. A prompt is encoded once, so that the
  // memory of weights counts and the time of products does not: inputs are not rounded.
  virtual QuantizeRecipe recipe(size_t index, const Format& format) const = 0;
  // From what the encoders gave.
  virtual Condition condition(const PromptTokens& prompt,
                              std::span<const NamedTensors> results) const = 0;
  // Whether encoders can be in one graph with what reads them, and be trained together.
  virtual bool trains_together() const { return false; }
  // Where they can: encoder `index` for so many rows, its inputs for their prompts, and, by their
  // names in a Condition, what a denoiser is given of the encoders' outputs, [rows, ...] each.
  virtual std::shared_ptr<Graph> build_rows(size_t index, int64_t rows,
                                            const BuildOptions& options) const;
  virtual NamedTensors inputs_of_rows(size_t index, std::span<const PromptTokens> prompts) const;
  virtual std::map<std::string, Value> joined(
      std::span<const std::map<std::string, Value>> results) const;
  // What adapters can change of it.
  virtual AdaptedModel::Encoder adapted(size_t index) const {
    return {folders()[index], fmt::format("te{}", index + 1), {}, {}};
  }
  // What stands for a negative prompt where none is given; nothing where it is the empty prompt.
  virtual std::optional<Condition> without_negative() const { return std::nullopt; }
};

// Latents to pictures and back.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual std::string_view folder() const = 0;  // "vae"
  virtual int64_t channels() const = 0;         // of the sampler's latents
  virtual int64_t scale() const = 0;            // pixels per latent, each way
  // "latents" [rows, C, h, w] -> "image" [rows, 3, H, W], about -1 to 1.
  virtual std::shared_ptr<Graph> decoder(const Shape& latents, const BuildOptions&) const = 0;
  // "image" -> "latents", the mean of their distribution.
  virtual std::shared_ptr<Graph> encoder(const Shape& image, const BuildOptions&) const = 0;
  virtual WeightNames names(const Checkpoint& checkpoint) const = 0;
};

// An Error where a prompt is no text, or longer than any that is read.
void check_prompt_text(const std::string& prompt);

// How a family is usually sampled; a user may choose otherwise.
struct Sampling {
  SchedulerConfig scheduler;
  GuidanceRule guidance_rule = GuidanceRule::kFromPrompt;
  int64_t width = 1024, height = 1024;
  int steps = 8;
  float guidance = 0;
  // `guidance` is what the network reads. Two predictions become one by another strength then, that
  // of JobRequest::true_cfg.
  bool embedded_guidance = false;

  // How two predictions become one by `guidance` itself.
  GuidanceRule rule_of_guidance() const {
    return embedded_guidance ? GuidanceRule::kNone : guidance_rule;
  }
};

struct Family {
  std::string_view name;                        // "z-image", as people type it
  std::string_view title;                       // "Z-Image", as people read it
  std::vector<std::string_view> pipelines;      // classes in model_index.json
  bool (*is_denoiser)(const Checkpoint& file);  // whether a single file is one, by its tensors

  // Null in families that are recognized and cannot be run yet. Everything that can be wrong with
  // a folder's configs is wrong here.
  std::unique_ptr<Denoiser> (*denoiser)(const ModelFiles&) = nullptr;
  std::unique_ptr<Conditioner> (*conditioner)(const ModelFiles&) = nullptr;
  std::unique_ptr<Codec> (*codec)(const ModelFiles&) = nullptr;
  Sampling (*sampling)(const ModelFiles&) = nullptr;

  // Denoisers as they are published, for measuring without files: "4b" and so on, the first being
  // the usual one.
  struct Size {
    std::string_view name;
    std::unique_ptr<Denoiser> (*denoiser)();
    int64_t text_tokens;          // that it is usually given
    int64_t image_tokens = 4096;  // patches of a picture of 1024 x 1024
  };
  std::vector<Size> sizes = {};

  // What single files may hold besides the denoiser; empty: nothing that is read from them.
  struct PartOfFile {
    std::string_view folder;               // that it has otherwise
    std::vector<std::string_view> within;  // what its tensors' names begin with
    std::string_view tokenizer = {};       // the folder that it needs besides; files hold none
    bool optional = false;                 // the model does without
  };
  std::vector<PartOfFile> parts_of_file = {};

  bool runs() const { return denoiser != nullptr; }
};

}  // namespace halftone
