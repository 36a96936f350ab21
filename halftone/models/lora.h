// Low-rank adapters from files, in the ways of naming that are found in the wild:
//   transformer.PATH.lora_A.weight, .lora_B.weight          diffusers and PEFT
//   lora_unet_PATH_WITH_UNDERSCORES.lora_down.weight, .lora_up.weight, .alpha      kohya
//   diffusion_model.PATH with the suffixes of either        ComfyUI
//   blocks.N.processor.qkv_lora1.down.weight, .up.weight    XLabs
// and in the folders that PEFT saves, with their adapter_config.json.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "halftone/models/stored_rows.h"
#include "halftone/passes/lora.h"
#include "halftone/runtime/weights.h"

namespace halftone {

// The linear that an adapter's module changes, or the one of several that a file takes for one:
// `rows` of the adapter's B are for it then, and A serves each of them.
struct LoraTarget {
  std::string weight;
  Shape shape;  // [out, in]
  StoredRows rows = {};
};
// Module paths as files name them, such as "layers.0.attention.to_q", to linears.
using LoraTargets = std::map<std::string, std::vector<LoraTarget>>;

// What became of an adapter's file.
struct LoraReport {
  std::string file;
  int matched = 0;                     // linears that it changes
  std::vector<std::string> unmatched;  // keys that match nothing
  // What it was trained beside, where the file says so: a model's hash, and its precision.
  std::string base, base_precision;
  std::string hash;  // of what it adds to the linears
};

// That a file is an adapter, whatever model it may be for: an Error that names the tensor where it
// is not, or is of a kind that is not supported, or holds NaN.
void check_lora_file(const std::filesystem::path& file);

class LoraAdapter {
 public:
  struct Module {
    Tensor down;  // F32 [rank, in]
    Tensor up;    // F32 [out, rank], times alpha / rank
  };

  // From a file, or from a folder that PEFT or diffusers saved. A file in which no key matches, a
  // module without its other half or of another shape, NaN and kinds of adapters that are not
  // low-rank products are Errors.
  static LoraAdapter load(const std::filesystem::path& path, const LoraTargets& targets);
  // What would become of it, by names and shapes alone: soon known, however large it is.
  static LoraReport examine(const std::filesystem::path& path, const LoraTargets& targets);

  // An Error where the adapter at this strength is beyond what can be computed with.
  void check_strength(float strength) const;

  const std::map<std::string, Module>& modules() const { return modules_; }  // by weight
  int64_t rank() const { return rank_; }                                     // the largest
  const LoraReport& report() const { return report_; }

  // For attach_lora, as adapter number `slot`.
  LoraSites sites() const;
  Weights weights(size_t slot) const;
  // The graph's input: a strength for every row of the batch.
  Tensor strengths(std::span<const float> per_row) const;

 private:
  void add(const std::string& name, const std::string& weight, Module module);

  std::map<std::string, Module> modules_;
  int64_t rank_ = 0;
  // A bound on its factors and their product, before any strength, and the module that it is of.
  double largest_value_ = 0;
  std::string largest_module_;
  LoraReport report_;
};

}  // namespace halftone
