// Whether a file is an adapter, before there is a model to apply it to.
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/float_values.h"
#include "halftone/models/lora_keys.h"

namespace halftone {

void check_lora_file(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  const std::string where = path.string();
  const auto fail = [&](const TensorEntry& entry, const char* reason) {
    throw Error(ErrorCode::kInvalidInput, where, "tensor '{}' {}", printable(entry.name), reason);
  };
  struct Halves {
    const TensorEntry *down = nullptr, *up = nullptr;
  };
  std::map<std::string, Halves> modules;
  for (const TensorEntry& entry : file.tensors()) {
    const auto key = split_lora_key(entry.name);
    if (!key) {
      if (!is_for_another_component(entry.name)) check_does_nothing(file, entry, where);
      continue;
    }
    if (!is_high_precision(entry.dtype)) fail(entry, "is not F32, BF16 or F16");
    for (const float value : float_values(file.tensor(entry))) {
      if (!std::isfinite(value)) fail(entry, "holds NaN or Inf");
    }
    if (key->part == LoraPart::kAlpha) continue;
    if (entry.shape.rank() != 2 && entry.shape.rank() != 4 &&
        !is_for_another_component(entry.name)) {
      fail(entry, "is neither a matrix nor a convolution's kernel");
    }
    Halves& module = modules[key->path];
    (key->part == LoraPart::kDown ? module.down : module.up) = &entry;
  }
  if (modules.empty()) {
    throw Error(ErrorCode::kInvalidInput, where, "holds no low-rank adapter: it has {} tensors",
                file.tensors().size());
  }
  for (const auto& [name, module] : modules) {
    if (module.down != nullptr && module.up != nullptr) continue;
    throw Error(ErrorCode::kInvalidInput, where, "module '{}' has no {}", printable(name),
                module.down != nullptr ? "lora_B (lora_up)" : "lora_A (lora_down)");
  }
}

}  // namespace halftone
