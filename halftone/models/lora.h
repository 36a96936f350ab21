// Low-rank adapters from files, in the three ways of naming that are found in the wild:
//   transformer.PATH.lora_A.weight, .lora_B.weight          diffusers and PEFT
//   lora_unet_PATH_WITH_UNDERSCORES.lora_down.weight, .lora_up.weight, .alpha      kohya
//   diffusion_model.PATH with the suffixes of either        ComfyUI
// and in the folders that PEFT saves, with their adapter_config.json.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "halftone/models/model.h"
#include "halftone/models/stored_rows.h"
#include "halftone/passes/lora.h"
#include "halftone/runtime/program.h"

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

  // An Error where the adapter at this strength is beyond what can be computed with.
  void check_strength(float strength) const;

  const std::map<std::string, Module>& modules() const { return modules_; }  // by weight
  int64_t rank() const { return rank_; }                                     // the largest
  const LoraReport& report() const { return report_; }

 private:
  void add(const std::string& name, const std::string& weight, Module module);

  std::map<std::string, Module> modules_;
  int64_t rank_ = 0;
  // A bound on its factors and their product, before any strength, and the module that it is of.
  double largest_value_ = 0;
  std::string largest_module_;
  LoraReport report_;
};

// Several adapters stacked along the rank; where one does not change a linear its part is zero.
class LoraStack {
 public:
  explicit LoraStack(std::vector<LoraAdapter> adapters);

  bool empty() const { return adapters_.empty(); }
  const LoraSites& sites() const { return sites_; }
  Weights weights() const;
  void check_strengths(std::span<const float> per_adapter) const;
  // The graph's input: a strength per adapter, the same for every row of the batch.
  Tensor strengths(int64_t batch, std::span<const float> per_adapter) const;
  size_t size() const { return adapters_.size(); }

 private:
  std::vector<LoraAdapter> adapters_;
  LoraSites sites_;
};

}  // namespace halftone
