#include "halftone/training/lora_output.h"

#include <fmt/format.h>

#include "halftone/base/error.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/numerics/bf16.h"

namespace halftone {
namespace {

constexpr const char *kDown = ".lora_A.weight", *kUp = ".lora_B.weight";

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

}  // namespace

void write_lora(const std::filesystem::path& path, const TrainedLora& lora, LoraNaming naming,
                DType dtype, const Metadata& metadata) {
  HT_ASSERT(dtype == DType::kBF16 || dtype == DType::kF32);
  constexpr std::string_view kSuffix = ".weight";
  const std::string prefix =
      naming == LoraNaming::kComfyUi ? "diffusion_model" : std::string(lora.folder);
  const auto name_of_module = [&](const std::string& weight) {
    HT_ASSERT(weight.ends_with(kSuffix));
    return prefix + "." + weight.substr(0, weight.size() - kSuffix.size());
  };
  std::vector<TensorSpec> specs;
  for (const auto& [weight, module] : lora.modules) {
    const std::string name = name_of_module(weight);
    specs.push_back({name + kDown, dtype, module.down.shape()});
    specs.push_back({name + kUp, dtype, module.up.shape()});
  }
  Metadata all = metadata;
  all["format"] = "pt";
  SafetensorsWriter writer(path, specs, all);
  for (const auto& [weight, module] : lora.modules) {
    const std::string name = name_of_module(weight);
    writer.write(name + kDown, stored(module.down, 1, dtype).bytes());
    writer.write(name + kUp, stored(module.up, lora.strength, dtype).bytes());
  }
  writer.finish();
}

}  // namespace halftone
