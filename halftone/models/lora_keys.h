// Names of tensors in files of adapters.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "halftone/io/safetensors_file.h"
#include "halftone/models/lora.h"

namespace halftone {

enum class LoraPart { kDown, kUp, kAlpha };

struct LoraKey {
  std::string path;  // of the module, with the prefix that it has in the file
  LoraPart part;
};
// Nothing for a tensor that is no part of a low-rank product.
std::optional<LoraKey> split_lora_key(std::string_view name);

// What such a tensor belongs to: "DoRA", "LoHa"; empty where that is not known.
std::string_view other_adapter_kind(std::string_view name);

// To leave a tensor out that is no part of a low-rank product would change what the others stand
// for, unless it is a difference that is zero everywhere: an Error that names it.
void check_does_nothing(const SafetensorsFile& file, const TensorEntry& entry,
                        const std::string& where);

// Whether a tensor is for another part of a pipeline than its denoiser, such as its text encoders.
bool is_for_another_component(std::string_view name);

// A path as the file has it to the path in a table of targets; empty where there is none. Names
// with underscores instead of dots cannot be split, only looked up.
class LoraPaths {
 public:
  // What paths begin with in either spelling: some of `dotted` one after the other or none, and one
  // of `flat`. `bare`: paths that begin with nothing are of this table, too.
  struct Prefixes {
    std::vector<std::string> dotted, flat;
    bool bare = true;
  };
  LoraPaths(const LoraTargets& targets, Prefixes prefixes);
  std::string find(std::string_view path) const;
  // Whether a name begins as all of this table's must.
  bool leads(std::string_view name) const;

 private:
  const LoraTargets& targets_;
  Prefixes prefixes_;
  std::map<std::string, std::string, std::less<>> flat_;
};

LoraPaths denoiser_paths(const LoraTargets& targets);
LoraPaths encoder_paths(const AdaptedModel::Encoder& encoder);

}  // namespace halftone
