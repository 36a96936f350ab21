#include "halftone/models/lora_keys.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/models/float_values.h"

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
  // XLabs', whose modules say what they are: "processor.qkv_lora1".
  constexpr std::pair<std::string_view, LoraPart> kShort[] = {{".down.weight", LoraPart::kDown},
                                                              {".up.weight", LoraPart::kUp}};
  for (const auto& [suffix, part] : kShort) {
    if (!name.ends_with(suffix)) continue;
    const std::string_view path = name.substr(0, name.size() - suffix.size());
    for (const std::string_view end : {"_lora", "_lora1", "_lora2"}) {
      if (path.ends_with(end)) return LoraKey{std::string(path), part};
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

namespace {

// Whether it is added to a weight, and therefore does nothing where it is zero.
bool is_difference(std::string_view name) {
  return other_adapter_kind(name).starts_with("differences");
}

// One of the norms that adapters for control, such as FLUX.1's Canny and Depth, bring along.
bool is_norm_of_control(std::string_view name) {
  for (const std::string_view end : {"_norm.scale", ".norm_q.weight", ".norm_k.weight",
                                     ".norm_added_q.weight", ".norm_added_k.weight"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

bool is_zero(const SafetensorsFile& file, const TensorEntry& entry) {
  if (!is_high_precision(entry.dtype)) return false;
  const auto values = float_values(file.tensor(entry));
  return std::all_of(values.begin(), values.end(), [](float v) { return v == 0; });
}

}  // namespace

void check_does_nothing(const SafetensorsFile& file, const TensorEntry& entry,
                        const std::string& where) {
  if (is_difference(entry.name) && is_zero(file, entry)) return;
  for (const TensorEntry& other : file.tensors()) {
    if (!is_norm_of_control(other.name)) continue;
    throw Error(ErrorCode::kUnsupported, where,
                "tensor '{}' replaces a norm of the model, as adapters for control (Canny, Depth) "
                "do, which are not supported",
                printable(other.name));
  }
  const std::string_view kind = other_adapter_kind(entry.name);
  throw Error(ErrorCode::kUnsupported, where, "tensor '{}' is {}, which is not supported",
              printable(entry.name),
              kind.empty() ? "no part of a low-rank adapter"
                           : fmt::format("part of an adapter of another kind: {}", kind));
}

bool is_for_another_component(std::string_view name) {
  for (const std::string_view prefix :
       {"text_encoder", "text_model.", "lora_te", "te_", "te1_", "te2_", "te3_", "t5xxl", "clip_l.",
        "clip_g.", "conditioner.", "vae."}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

LoraPaths::LoraPaths(const LoraTargets& targets, Prefixes prefixes)
    : targets_(targets), prefixes_(std::move(prefixes)) {
  for (const auto& [path, list] : targets) {
    std::string flat = path;
    for (char& c : flat) c = c == '.' ? '_' : c;
    flat_.emplace(std::move(flat), path);
  }
}

std::string LoraPaths::find(std::string_view path) const {
  for (const std::string& prefix : prefixes_.flat) {
    if (!path.starts_with(prefix)) continue;
    const auto found = flat_.find(path.substr(prefix.size()));
    return found == flat_.end() ? "" : found->second;
  }
  bool bare = true;
  for (const std::string& prefix : prefixes_.dotted) {
    if (!path.starts_with(prefix)) continue;
    path.remove_prefix(prefix.size());
    bare = false;
  }
  if (bare && !prefixes_.bare) return "";
  return targets_.contains(std::string(path)) ? std::string(path) : "";
}

bool LoraPaths::leads(std::string_view name) const {
  const auto begins = [&](const std::string& prefix) { return name.starts_with(prefix); };
  return !prefixes_.bare && (std::ranges::any_of(prefixes_.dotted, begins) ||
                             std::ranges::any_of(prefixes_.flat, begins));
}

LoraPaths denoiser_paths(const LoraTargets& targets) {
  return {
      targets,
      {{"base_model.model.", "transformer.", "unet.", "model.diffusion_model.", "diffusion_model."},
       {"lora_unet_", "lora_transformer_", "lycoris_"}}};
}

LoraPaths encoder_paths(const AdaptedModel::Encoder& encoder) {
  LoraPaths::Prefixes prefixes;
  prefixes.dotted = {encoder.folder + "."};
  prefixes.flat = {"lora_" + encoder.kohya + "_", "lycoris_" + encoder.kohya + "_"};
  if (!encoder.comfy.empty()) {
    for (const char* before : {"text_encoders.", ""}) {
      prefixes.dotted.push_back(fmt::format("{}{}.transformer.", before, encoder.comfy));
    }
  }
  prefixes.bare = false;
  return {encoder.targets, std::move(prefixes)};
}

}  // namespace halftone
