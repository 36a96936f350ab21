#include "halftone/training/weights_output.h"

#include "halftone/base/error.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/tensor/float_values.h"

namespace halftone {
namespace {

Tensor stored(const Tensor& values, DType dtype) {
  HT_ASSERT(dtype == DType::kBF16 || dtype == DType::kF32);
  return dtype == DType::kF32 ? as_f32(values) : as_bf16(values);
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
  std::vector<TensorSpec> specs;
  for (const auto& [name, original] : model.originals()) {
    const Tensor& own = std::get<Tensor>(original);
    specs.push_back({name, trained.contains(name) ? dtype : own.dtype(), own.shape()});
  }
  Metadata all = metadata;
  all["format"] = "pt";
  // One by one: all of them beside what is trained would be as much again.
  SafetensorsWriter writer(path, specs, all);
  for (const auto& [name, original] : model.originals()) {
    const auto found = trained.find(name);
    const Tensor tensor =
        found != trained.end() ? stored(found->second, dtype) : std::get<Tensor>(original);
    writer.write(name, tensor.bytes());
  }
  writer.finish();
}

}  // namespace halftone
