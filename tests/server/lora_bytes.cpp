#include "tests/server/lora_bytes.h"

#include <bit>
#include <nlohmann/json.hpp>

#include "halftone/engine/model_parts.h"

namespace halftone::test {

std::string safetensors_bytes(const std::vector<LoraTensor>& tensors, const std::string& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = nlohmann::ordered_json::parse(metadata);
  std::string data;
  for (const LoraTensor& tensor : tensors) {
    const size_t begin = data.size();
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    for (int64_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<uint32_t>(tensor.value);
      const auto size = tensor.dtype == "F32" ? 4u : 1u;
      for (unsigned at = 0; at < size; ++at) data += static_cast<char>(bits >> (8 * at));
    }
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string bytes;
  for (unsigned at = 0; at < 8; ++at) bytes += static_cast<char>(text.size() >> (8 * at));
  return bytes + text + data;
}

LoraModule some_lora_module() {
  const ModelParts parts = ModelParts::read(find_model(HALFTONE_MODELS "/emoji", {}));
  const Denoiser& denoiser = *parts.denoiser;
  const auto targets = denoiser.lora_targets(*denoiser.build(denoiser.smallest_shape(), {}));
  const auto& [path, list] = *targets.begin();
  return {path, list.at(0).rows.in_file(list[0].shape[0]), list[0].shape[1]};
}

std::string some_lora(float value) {
  const LoraModule module = some_lora_module();
  const std::string name = "transformer." + module.path;
  return safetensors_bytes({{name + ".lora_A.weight", {2, module.in}, value},
                            {name + ".lora_B.weight", {module.out, 2}, value}});
}

}  // namespace halftone::test
