// Weights of a model by name, in the CPU's memory or a device's.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "halftone/kernels/device.h"
#include "halftone/passes/merge.h"
#include "halftone/tensor/quantized_tensor.h"

namespace halftone {

// A weight as it is stored, in high precision or quantized along its rows.
using Weight = std::variant<Tensor, QuantizedTensor>;
const Shape& shape_of(const Weight& weight);
int64_t byte_size_of(const Weight& weight);
void check_intact(const Weight& weight);                  // as Storage::check_intact
bool are_stored_alike(const Weight& a, const Weight& b);  // in one dtype or format
// Shared by all programs of a model.
using Weights = std::map<std::string, Weight>;

// These weights in a device's memory, in one piece. Those of one stack follow each other there.
Weights to_device(const Weights& weights, std::span<const WeightStack> stacks,
                  DeviceContext& device);

// Several weights as one; nothing where one is missing or they do not follow each other in memory.
std::optional<Weight> stacked(const Weights& weights, const WeightStack& stack);

}  // namespace halftone
