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

// Whether a tensor is for a part of a pipeline that adapters are not applied to, such as its text
// encoder.
bool is_for_another_component(std::string_view name);

// A path as the file has it to the path in the table of targets; empty where there is none. Names
// with underscores instead of dots cannot be split, only looked up.
class LoraPaths {
 public:
  explicit LoraPaths(const LoraTargets& targets);
  std::string find(std::string_view path) const;

 private:
  const LoraTargets& targets_;
  std::map<std::string, std::string, std::less<>> flat_;
};

}  // namespace halftone
