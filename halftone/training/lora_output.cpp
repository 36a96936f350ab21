#include "halftone/training/lora_output.h"

#include <fmt/format.h>

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

}  // namespace

void write_lora(const std::filesystem::path& path, const TrainedLora& lora, LoraNaming naming,
                DType dtype, const Metadata& metadata) {
  HT_ASSERT(dtype == DType::kBF16 || dtype == DType::kF32);
  constexpr std::string_view kSuffix = ".weight";
  const std::string prefix =
      naming == LoraNaming::kComfyUi ? "diffusion_model" : std::string(lora.folder);
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& [weight, module] : lora.modules) {
    HT_ASSERT(weight.ends_with(kSuffix));
    const std::string name = prefix + "." + weight.substr(0, weight.size() - kSuffix.size());
    tensors.emplace_back(name + ".lora_A.weight", stored(module.down, 1, dtype));
    tensors.emplace_back(name + ".lora_B.weight", stored(module.up, lora.strength, dtype));
  }
  Metadata all = metadata;
  all["format"] = "pt";
  write_safetensors(path, tensors, all);
}

}  // namespace halftone
