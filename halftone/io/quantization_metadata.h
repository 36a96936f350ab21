// What a file written by Halftone says about its quantized tensors: header metadata
// "halftone.quantization", JSON with a format per tensor. The tensors themselves are
//   NAME          codes: F8_E4M3 [N, K], or U8 [N, K/2] in NVFP4
//   NAME_scale    F32 [1] or [N, 1]; F8_E8M0 [N, K/32]; F8_E4M3 [N, K/16]
//   NAME_scale_2  F32 [1], NVFP4's global scale
//   NAME_input_scale  F32 [1], optional: the calibrated scale of the linear's input, amax/448 in
//   FP8,
//                 amax/2688 in NVFP4
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "halftone/io/checkpoint.h"
#include "halftone/numerics/format.h"
#include "halftone/tensor/quantized_tensor.h"

namespace halftone {

inline constexpr const char* kQuantizationKey = "halftone.quantization";

struct QuantizedEntry {
  Format format;
  Shape shape;  // of the matrix, [N, K]
};
using QuantizationMetadata = std::map<std::string, QuantizedEntry>;

std::string scale_name(std::string_view tensor);         // NAME_scale
std::string global_scale_name(std::string_view tensor);  // NAME_scale_2
std::string input_scale_name(std::string_view tensor);   // NAME_input_scale

std::string to_json(const QuantizationMetadata& metadata);
// Fields that are missing, unknown or contradict each other are Errors that name the tensor.
QuantizationMetadata parse_quantization_metadata(std::string_view text, const std::string& where);

// One quantized tensor as views of the file; an Error where a part is missing or mis-shaped.
QuantizedTensor load_quantized(const Checkpoint& checkpoint, const std::string& name,
                               const QuantizedEntry& entry);

}  // namespace halftone
