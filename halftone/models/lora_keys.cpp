#include "halftone/models/lora_keys.h"

#include "halftone/base/error.h"

namespace halftone {

std::optional<LoraKey> split_lora_key(std::string_view name) {
  constexpr std::pair<std::string_view, LoraPart> kSuffixes[] = {
      {".lora_A.weight", LoraPart::kDown},
      {".lora_B.weight", LoraPart::kUp},
      {".lora_A.default.weight", LoraPart::kDown},
      {".lora_B.default.weight", LoraPart::kUp},
      {".lora_down.weight", LoraPart::kDown},
      {".lora_up.weight", LoraPart::kUp},
      {".lora.down.weight", LoraPart::kDown},
      {".lora.up.weight", LoraPart::kUp},
      {".alpha", LoraPart::kAlpha}};
  for (const auto& [suffix, part] : kSuffixes) {
    if (name.ends_with(suffix)) {
      return LoraKey{std::string(name.substr(0, name.size() - suffix.size())), part};
    }
  }
  return std::nullopt;
}

std::string_view other_adapter_kind(std::string_view name) {
  // By what follows a dot in the name.
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {".dora_scale", "DoRA"},
      {".lora_magnitude_vector", "DoRA"},
      {".hada_", "LoHa"},
      {".lokr_", "LoKr"},
      {".ia3_l", "(IA)^3"},
      {".on_input", "(IA)^3"},
      {".oft_", "OFT"},
      {".boft_", "BOFT"},
      {".vera_", "VeRA"},
      {".lora_mid.", "LoCon with a core tensor"},
      {".lora_embedding_", "LoRA of embeddings"},
      {".lora_A.bias", "LoRA with biases"},
      {".lora_B.bias", "LoRA with biases"},
      {".lora_down.bias", "LoRA with biases"},
      {".lora_up.bias", "LoRA with biases"},
      {".w_norm", "differences of norms"},
      {".b_norm", "differences of norms"},
      {".diff", "differences of whole weights"},
      {".set_weight", "whole weights"},
      {".modules_to_save.", "whole weights"},
  };
  for (const auto& [part, kind] : kKinds) {
    if (name.find(part) != std::string_view::npos) return kind;
  }
  return name.ends_with(".weight") || name.ends_with(".bias") ? "whole weights" : "";
}

void refuse_lora_tensor(const std::string& file, std::string_view name) {
  const std::string_view kind = other_adapter_kind(name);
  throw Error(ErrorCode::kUnsupported, file, "tensor '{}' is {}, which is not supported",
              printable(name),
              kind.empty() ? "no part of a low-rank adapter"
                           : fmt::format("part of an adapter of another kind: {}", kind));
}

bool is_for_another_component(std::string_view name) {
  for (const std::string_view prefix :
       {"text_encoder", "text_model.", "lora_te", "te_", "conditioner.", "vae."}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

LoraPaths::LoraPaths(const LoraTargets& targets) : targets_(targets) {
  for (const auto& [path, list] : targets) {
    std::string flat = path;
    for (char& c : flat) c = c == '.' ? '_' : c;
    flat_.emplace(std::move(flat), path);
  }
}

std::string LoraPaths::find(std::string_view path) const {
  for (const std::string_view prefix : {"lora_unet_", "lora_transformer_", "lycoris_"}) {
    if (!path.starts_with(prefix)) continue;
    const auto found = flat_.find(path.substr(prefix.size()));
    return found == flat_.end() ? "" : found->second;
  }
  for (const std::string_view prefix :
       {"base_model.model.", "transformer.", "model.diffusion_model.", "diffusion_model."}) {
    if (path.starts_with(prefix)) path.remove_prefix(prefix.size());
  }
  return targets_.contains(std::string(path)) ? std::string(path) : "";
}

}  // namespace halftone
