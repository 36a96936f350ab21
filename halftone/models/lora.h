// Low-rank adapters from files, of linears and of convolutions (LoCon), in the ways of naming that
// are found in the wild:
//   transformer.PATH.lora_A.weight, .lora_B.weight          diffusers and PEFT
//   lora_unet_PATH_WITH_UNDERSCORES.lora_down.weight, .lora_up.weight, .alpha      kohya
//   diffusion_model.PATH with the suffixes of either        ComfyUI
//   blocks.N.processor.qkv_lora1.down.weight, .up.weight    XLabs
// and in the folders that PEFT saves, with their adapter_config.json. What is for text encoders
// begins with
//   text_encoder., text_encoder_2.                   diffusers
//   lora_te1_, lora_te2_                             kohya
//   text_encoders.clip_l.transformer., clip_g.       ComfyUI
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "halftone/models/stored_rows.h"
#include "halftone/passes/lora.h"
#include "halftone/runtime/weights.h"

namespace halftone {

// The linear or convolution that an adapter's module changes, or the one of several that a file
// takes for one: `rows` of the adapter's B are for it then, and A serves each of them.
struct LoraTarget {
  std::string weight;
  Shape shape;  // [out, in], of a convolution [out, in, height, width]
  StoredRows rows = {};
};
// Module paths as files name them, such as "layers.0.attention.to_q".
using LoraTargets = std::map<std::string, std::vector<LoraTarget>>;

// All of a model that adapters can change.
struct AdaptedModel {
  LoraTargets denoiser;
  struct Encoder {
    std::string folder;  // of a text encoder, in diffusers' layout: "text_encoder"
    std::string kohya;   // "te1"
    std::string comfy;   // "clip_l"; empty: nothing there is for it
    LoraTargets targets;
  };
  std::vector<Encoder> encoders = {};  // one for each of the model's, in their order
};
// What of it: the denoiser, or encoder 0, 1, ...
using AdaptedPart = std::optional<size_t>;
inline constexpr AdaptedPart kDenoiserPart = std::nullopt;

// What became of an adapter's file.
struct LoraReport {
  std::string file;
  int matched = 0;                     // linears and convolutions that it changes
  std::vector<std::string> unmatched;  // keys that match nothing
  // What it was trained beside, where the file says so: a model's hash, and its precision.
  std::string base, base_precision;
  std::string hash;  // of what it adds to them
};

// That a file is an adapter, whatever model it may be for: an Error that names the tensor where it
// is not, or is of a kind that is not supported, or holds NaN.
void check_lora_file(const std::filesystem::path& file);

class LoraAdapter {
 public:
  struct Module {
    Tensor down;  // F32 [rank, in], or [rank, in, height, width]
    Tensor up;    // F32 [out, rank], or [out, rank, 1, 1], times alpha / rank
  };

  // From a file, or from a folder that PEFT or diffusers saved. A file in which no key matches, a
  // module without its other half or of another shape, NaN and kinds of adapters that are not
  // low-rank products are Errors.
  static LoraAdapter load(const std::filesystem::path& path, const AdaptedModel& model);
  static LoraAdapter load(const std::filesystem::path& path, const LoraTargets& denoiser) {
    return load(path, AdaptedModel{denoiser});
  }
  // What would become of it, by names and shapes alone: soon known, however large it is.
  static LoraReport examine(const std::filesystem::path& path, const AdaptedModel& model);
  static LoraReport examine(const std::filesystem::path& path, const LoraTargets& denoiser) {
    return examine(path, AdaptedModel{denoiser});
  }

  // An Error where the adapter at this strength is beyond what can be computed with.
  void check_strength(float strength) const;

  using Modules = std::map<std::string, Module>;  // by weight
  const Modules& modules(AdaptedPart part = kDenoiserPart) const { return changes(part).modules; }
  int64_t rank(AdaptedPart part = kDenoiserPart) const {
    return changes(part).rank;
  }  // the largest
  bool changes_text() const { return !encoders_.empty(); }
  const LoraReport& report() const { return report_; }

  // For attach_lora, as adapter number `slot`.
  LoraSites sites(AdaptedPart part = kDenoiserPart) const;
  Weights weights(size_t slot, AdaptedPart part = kDenoiserPart) const;
  // The graph's input: a strength for every row of the batch.
  Tensor strengths(std::span<const float> per_row, AdaptedPart part = kDenoiserPart) const;

 private:
  struct Changes {
    Modules modules;
    int64_t rank = 0;
  };
  const Changes& changes(AdaptedPart part) const;
  void add(const std::string& name, AdaptedPart part, const std::string& weight, Module module);

  Changes denoiser_;
  std::map<size_t, Changes> encoders_;  // those that it changes
  // A bound on its factors and their product, before any strength, and the module that it is of.
  double largest_value_ = 0;
  std::string largest_module_;
  LoraReport report_;
};

}  // namespace halftone
