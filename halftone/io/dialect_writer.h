// Quantized weights as other tools store them: which tensors a weight becomes, and what the file
// says about it in markers, metadata and a config beside it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "halftone/io/conversion_notes.h"
#include "halftone/io/dialect.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/tensor/quantized_tensor.h"

namespace halftone {

// What can be known of a weight before its codes are read.
struct WeightInfo {
  std::string name;  // "a.b.weight"
  Format format;
  Shape shape;             // [N, K]
  float global_scale = 1;  // NVFP4's
  std::optional<float> input_scale;
  bool full_precision = false;
};
WeightInfo weight_info(const std::string& name, const QuantizedTensor& weight,
                       const std::optional<float>& input_scale = {}, bool full_precision = false);

// Empty if the dialect can hold such a weight, otherwise why not and what would work.
std::string why_not_in(Dialect dialect, const WeightInfo& weight);

// One tensor of the file: where it will stand, and how it follows from the canonical weight.
struct PlannedTensor {
  TensorSpec spec;
  std::function<Tensor(const QuantizedTensor&)> make;
};
// An Error that names the weight where the dialect cannot hold it; `file` is the one to be written.
std::vector<PlannedTensor> plan_tensors(Dialect dialect, const WeightInfo& weight,
                                        const std::string& file);
// The same at once, for a weight that is in memory.
std::vector<std::pair<std::string, Tensor>> dialect_tensors(Dialect dialect,
                                                            const WeightInfo& weight,
                                                            const QuantizedTensor& q,
                                                            const std::string& file);

// Header metadata of a file with these weights and, besides them, tensors of these names.
Metadata dialect_metadata(Dialect dialect, std::span<const WeightInfo> weights,
                          std::span<const std::string> others);

// A config that the dialect's readers want beside the file.
struct DialectConfig {
  std::string name;  // as readers look for it, or the field of config.json that it goes into
  std::string json;
};
std::optional<DialectConfig> dialect_config(Dialect dialect, std::span<const WeightInfo> weights,
                                            std::span<const std::string> kept_layers);

}  // namespace halftone
