// What other tools say about a quantized layer besides its tensors: ComfyUI's marker and torchao's
// description, both JSON. Read strictly, so that nothing they say is passed over.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/numerics/format.h"
#include "halftone/tensor/shape.h"

namespace halftone {

inline constexpr const char* kComfyMetadataKey = "_quantization_metadata";

struct ComfyMarker {
  Format format;                // as the marker names it
  bool full_precision = false;  // compute with what the weight stands for; do not round the input
};
// The text of a tensor LAYER.comfy_quant.
ComfyMarker parse_comfy_marker(std::string_view text, const std::string& where);
// The header's _quantization_metadata: layer -> marker.
std::map<std::string, ComfyMarker> parse_comfy_metadata(std::string_view text,
                                                        const std::string& where);
// Nothing where ComfyUI has no name for the format.
std::optional<std::string> comfy_marker_json(const Format& format, bool full_precision);

struct TorchaoMarker {
  std::string type;                          // Float8Tensor, MXTensor or NVFP4Tensor
  bool swizzled = false;                     // is_swizzled_scales
  bool full_precision = false;               // no act_quant_kwargs: only the weight is quantized
  std::optional<ExponentRounding> rounding;  // of the input's scales, where stated
  std::vector<std::string> parts;            // what M._weight_* tensors there must be
};
// The header metadata of one weight.
TorchaoMarker parse_torchao_marker(std::string_view text, const std::string& where);
// For a weight [N, K] that is written with linear scales.
std::string torchao_marker_json(const Format& format, const Shape& shape, bool full_precision,
                                bool input_scale);

}  // namespace halftone
