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

std::string module_name(const std::string& weight, const std::string& folder, LoraNaming naming) {
  constexpr std::string_view kSuffix = ".weight";
  HT_ASSERT(weight.ends_with(kSuffix));
  std::string path = weight.substr(0, weight.size() - kSuffix.size());
  if (naming == LoraNaming::kComfyUi) return "diffusion_model." + path;
  if (naming == LoraNaming::kDiffusers) return folder + "." + path;
  std::replace(path.begin(), path.end(), '.', '_');
  return fmt::format("lora_{}_{}", folder, path);
}

}  // namespace

void write_lora(const std::filesystem::path& path, const TrainedLora& lora, LoraNaming naming,
                DType dtype, const Metadata& metadata) {
  HT_ASSERT(dtype == DType::kBF16 || dtype == DType::kF32);
  const bool kohya = naming == LoraNaming::kKohya;
  const char* const down = kohya ? ".lora_down.weight" : ".lora_A.weight";
  const char* const up = kohya ? ".lora_up.weight" : ".lora_B.weight";
  std::vector<TensorSpec> specs;
  for (const auto& [weight, module] : lora.modules) {
    const std::string name = module_name(weight, lora.folder, naming);
    specs.push_back({name + down, dtype, module.down.shape()});
    specs.push_back({name + up, dtype, module.up.shape()});
    if (kohya) specs.push_back({name + ".alpha", DType::kF32, {}});
  }
  Metadata all = metadata;
  all["format"] = "pt";
  SafetensorsWriter writer(path, specs, all);
  for (const auto& [weight, module] : lora.modules) {
    const std::string name = module_name(weight, lora.folder, naming);
    writer.write(name + down, stored(module.down, 1, dtype).bytes());
    writer.write(name + up, stored(module.up, lora.strength, dtype).bytes());
    if (!kohya) continue;
    Tensor alpha = Tensor::empty(DType::kF32, {});
    alpha.mutable_as<float>()[0] = static_cast<float>(module.down.shape()[0]);
    writer.write(name + ".alpha", alpha.bytes());
  }
  writer.finish();
}

}  // namespace halftone
