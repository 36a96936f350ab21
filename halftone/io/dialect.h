// Which tool's conventions a file with quantized weights follows, told by markers and names.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "halftone/io/safetensors_header.h"

namespace halftone {

enum class Dialect {
  kNone,               // nothing quantized
  kHalftone,           // metadata halftone.quantization
  kComfyUI,            // LAYER.comfy_quant, _quantization_metadata, or the older scaled_fp8
  kCompressedTensors,  // weight_packed, weight_global_scale
  kTorchao,            // M._weight_qdata
  kModelOpt,           // weight_scale, weight_scale_2, input_scale without markers
  kScaledFp8,          // FP8 or MXFP8: ModelOpt's and compressed-tensors' look the same
  kPlainFp8,           // FP8 weights without any scale
  kUnknown,            // FP8, FP4 or scale tensors that no rule above explains
};

struct DialectReport {
  Dialect dialect = Dialect::kNone;
  std::string evidence;               // the marker or tensor that told
  std::map<std::string, int> layers;  // format -> number of layers
};

std::string_view to_string(Dialect dialect);
// One of those that can be written: halftone, comfyui, modelopt, compressed-tensors, torchao.
std::optional<Dialect> find_dialect(std::string_view name);

// `file` names the source in Errors about markers that cannot be read.
DialectReport detect_dialect(std::span<const TensorEntry* const> tensors, const Metadata& metadata,
                             const std::string& file);

}  // namespace halftone
