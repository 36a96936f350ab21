#include "halftone/training/weights_output.h"

#include "halftone/base/error.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/tensor/float_values.h"

namespace halftone {
namespace {

Tensor stored(const Tensor& values, DType dtype) {
  HT_ASSERT(dtype == DType::kBF16 || dtype == DType::kF32);
  return dtype == DType::kF32 ? values : as_bf16(values);
}

}  // namespace

Weights stored_weights(const std::map<std::string, Tensor>& values, DType dtype) {
  Weights weights;
  for (const auto& [name, tensor] : values) weights.emplace(name, stored(tensor, dtype));
  return weights;
}

void write_weights(const std::filesystem::path& path, const Model& model,
                   const std::map<std::string, Tensor>& trained, DType dtype,
                   const Metadata& metadata) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& [name, original] : model.originals()) {
    const auto found = trained.find(name);
    tensors.emplace_back(
        name, found != trained.end() ? stored(found->second, dtype) : std::get<Tensor>(original));
  }
  Metadata all = metadata;
  all["format"] = "pt";
  write_safetensors(path, tensors, all);
}

}  // namespace halftone
