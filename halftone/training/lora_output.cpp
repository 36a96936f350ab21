#include "halftone/training/lora_output.h"

#include <fmt/format.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/numerics/bf16.h"

namespace halftone {
namespace {

Tensor stored(const Tensor& values, float scale, DType dtype) {
  Tensor out = Tensor::empty(dtype, values.shape());
  const auto from = values.as<float>();
  for (size_t i = 0; i < from.size(); ++i) {
    if (dtype == DType::kBF16) {
      out.mutable_as<bf16>()[i] = to_bf16(from[i] * scale);
    } else {
      out.mutable_as<float>()[i] = from[i] * scale;
    }
  }
  return out;
}

// What modules begin with in a naming, and whether dots are underscores.
struct Spelled {
  std::string prefix;
  bool flat = false;

  std::string module(const std::string& weight) const {
    constexpr std::string_view kSuffix = ".weight";
    HT_ASSERT(weight.ends_with(kSuffix));
    std::string path = weight.substr(0, weight.size() - kSuffix.size());
    if (flat) std::replace(path.begin(), path.end(), '.', '_');
    return prefix + path;
  }
};

Spelled of_denoiser(const std::string& folder, LoraNaming naming) {
  if (naming == LoraNaming::kKohya) return {fmt::format("lora_{}_", folder), true};
  return {folder + "."};
}

Spelled of_encoder(const TrainedLora::Encoder& encoder, LoraNaming naming) {
  if (naming == LoraNaming::kKohya) return {fmt::format("lora_{}_", encoder.kohya), true};
  return {encoder.folder + "."};
}

}  // namespace

void write_lora(const std::filesystem::path& path, const TrainedLora& lora, LoraNaming naming,
                DType dtype, const Metadata& metadata) {
  HT_ASSERT(dtype == DType::kBF16 || dtype == DType::kF32);
  // Of U-Nets ComfyUI has "diffusion_model." before the original code's names alone.
  if (naming == LoraNaming::kComfyUi && lora.folder == "unet") naming = LoraNaming::kKohya;
  const bool kohya = naming == LoraNaming::kKohya;
  const char* const down = kohya ? ".lora_down.weight" : ".lora_A.weight";
  const char* const up = kohya ? ".lora_up.weight" : ".lora_B.weight";
  std::map<std::string, const TrainedLora::Module*> modules;  // by their names in the file
  for (const auto& [weight, module] : lora.modules) {
    modules[of_denoiser(lora.folder, naming).module(weight)] = &module;
  }
  for (const TrainedLora::Encoder& encoder : lora.encoders) {
    for (const auto& [weight, module] : encoder.modules) {
      modules[of_encoder(encoder, naming).module(weight)] = &module;
    }
  }
  std::vector<TensorSpec> specs;
  for (const auto& [name, module] : modules) {
    specs.push_back({name + down, dtype, module->down.shape()});
    specs.push_back({name + up, dtype, module->up.shape()});
    if (kohya) specs.push_back({name + ".alpha", DType::kF32, {}});
  }
  Metadata all = metadata;
  all["format"] = "pt";
  SafetensorsWriter writer(path, specs, all);
  for (const auto& [name, module] : modules) {
    writer.write(name + down, stored(module->down, 1, dtype).bytes());
    writer.write(name + up, stored(module->up, lora.strength, dtype).bytes());
    if (!kohya) continue;
    Tensor alpha = Tensor::empty(DType::kF32, {});
    alpha.mutable_as<float>()[0] = static_cast<float>(module->down.shape()[0]);
    writer.write(name + ".alpha", alpha.bytes());
  }
  writer.finish();
}

}  // namespace halftone
