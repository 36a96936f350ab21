#include "halftone/io/dialect.h"

#include <functional>
#include <unordered_map>

#include "halftone/base/error.h"
#include "halftone/io/config_reader.h"
#include "halftone/io/conversion_notes.h"
#include "halftone/io/dialect_markers.h"
#include "halftone/io/json.h"
#include "halftone/io/quantization_metadata.h"

namespace halftone {
namespace {

using Tensors = std::span<const TensorEntry* const>;

class Detector {
 public:
  Detector(Tensors tensors, const Metadata& metadata, const std::string& file)
      : tensors_(tensors), metadata_(metadata), file_(file) {
    for (const TensorEntry* tensor : tensors) by_name_[tensor->name] = tensor;
  }

  DialectReport detect() {
    if (halftone() || comfyui() || compressed_tensors() || torchao() || modelopt() || plain()) {
      return report_;
    }
    return {};
  }

 private:
  const TensorEntry* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  bool found(Dialect dialect, const std::string& evidence) {
    report_.dialect = dialect;
    report_.evidence = evidence;
    return true;
  }

  // Counts layers by the tensors that end in `suffix`; true if there were any.
  bool count(
      std::string_view suffix, Dialect dialect,
      const std::function<std::string(const TensorEntry&, const std::string& layer)>& format) {
    for (const TensorEntry* tensor : tensors_) {
      if (!tensor->name.ends_with(suffix)) continue;
      const std::string layer = tensor->name.substr(0, tensor->name.size() - suffix.size());
      const std::string name = format(*tensor, layer);
      if (name.empty()) continue;
      ++report_.layers[name];
      if (report_.evidence.empty()) found(dialect, "tensor " + tensor->name);
    }
    return !report_.layers.empty();
  }

  bool halftone() {
    const auto marker = metadata_.find(kQuantizationKey);
    if (marker == metadata_.end()) return false;
    const std::string where = file_ + ": metadata " + kQuantizationKey;
    for (const auto& [name, entry] : parse_quantization_metadata(marker->second, where)) {
      if (find(name) == nullptr) {
        throw Error(ErrorCode::kInvalidInput, where, "tensor '{}' is not in the file",
                    printable(name));
      }
      ++report_.layers[std::string(entry.format.name)];
    }
    return found(Dialect::kHalftone, std::string("metadata ") + kQuantizationKey);
  }

  bool comfyui() {
    const auto marker = metadata_.find(kComfyMetadataKey);
    if (marker != metadata_.end()) {
      const std::string where = fmt::format("{}: metadata {}", file_, kComfyMetadataKey);
      const nlohmann::json json = parse_json(marker->second, where);
      const ConfigReader layers = ConfigReader(json, where).object("layers");
      for (const auto& [layer, how] : layers.json().items()) {
        const std::string layer_where = fmt::format("{}: layer '{}'", where, printable(layer));
        ++report_.layers[ConfigReader(how, layer_where).text("format")];
      }
      return found(Dialect::kComfyUI, std::string("metadata ") + kComfyMetadataKey);
    }
    for (const TensorEntry* tensor : tensors_) {
      if (tensor->name != "scaled_fp8" && !tensor->name.ends_with(".scaled_fp8")) continue;
      count(".scale_weight", Dialect::kComfyUI, [&](const TensorEntry&, const std::string& layer) {
        return format_by_parts(layer + ".weight");
      });
      return found(Dialect::kComfyUI, "tensor " + tensor->name);
    }
    count(".comfy_quant", Dialect::kComfyUI, [&](const TensorEntry&, const std::string& layer) {
      return format_by_parts(layer + ".weight");
    });
    // One marker is enough, even if what it marks is not whole.
    for (const TensorEntry* tensor : tensors_) {
      if (tensor->name.ends_with(".comfy_quant") && report_.evidence.empty()) {
        found(Dialect::kComfyUI, "tensor " + tensor->name);
      }
    }
    return report_.dialect == Dialect::kComfyUI;
  }

  bool compressed_tensors() {
    const bool packed =
        count(".weight_packed", Dialect::kCompressedTensors,
              [&](const TensorEntry&, const std::string& layer) {
                return find(layer + ".weight_global_scale") != nullptr ? "nvfp4" : "packed";
              });
    if (!packed) return false;
    return count(".weight_scale", Dialect::kCompressedTensors,
                 [&](const TensorEntry&, const std::string& layer) {
                   return format_by_parts(layer + ".weight");
                 });
  }

  bool torchao() {
    return count("_weight_qdata", Dialect::kTorchao,
                 [&](const TensorEntry& codes, const std::string& layer) -> std::string {
                   if (find(layer + "_weight_per_tensor_scale") != nullptr) return "nvfp4";
                   const TensorEntry* scale = find(layer + "_weight_scale");
                   const bool fp4 = codes.dtype == DType::kU8 && scale != nullptr &&
                                    scale->dtype == DType::kF8E4M3;
                   if (fp4) return "nvfp4";
                   return scale != nullptr && scale->dtype == DType::kF8E8M0 ? "mxfp8"
                          : codes.dtype == DType::kF8E4M3                    ? "fp8"
                                                                             : "quantized";
                 });
  }

  bool modelopt() {
    const bool any = count(".weight_scale", Dialect::kModelOpt,
                           [&](const TensorEntry&, const std::string& layer) {
                             return format_by_parts(layer + ".weight");
                           });
    if (any && !report_.layers.contains("nvfp4")) {
      report_.dialect = Dialect::kScaledFp8;
      const auto said = metadata_.find(kDialectKey);
      const auto dialect = said == metadata_.end() ? std::nullopt : find_dialect(said->second);
      if (dialect == Dialect::kModelOpt || dialect == Dialect::kCompressedTensors) {
        found(*dialect, std::string("metadata ") + kDialectKey);
      }
    }
    return any;
  }

  // FP8, MXFP8 or NVFP4, from the dtypes of a weight and its scales.
  std::string format_by_parts(const std::string& weight) const {
    const TensorEntry* codes = find(weight);
    const TensorEntry* scale = find(weight + "_scale");
    if (codes == nullptr) return {};
    if (codes->dtype == DType::kU8 && find(weight + "_scale_2") != nullptr) return "nvfp4";
    const bool fp8 = codes->dtype == DType::kF8E4M3 || codes->dtype == DType::kF8E5M2;
    if (!fp8) return {};  // int8 and the like belong to no format of ours
    if (scale != nullptr && (scale->dtype == DType::kU8 || scale->dtype == DType::kF8E8M0)) {
      return "mxfp8";
    }
    return codes->dtype == DType::kF8E5M2 ? "fp8-e5m2" : "fp8";
  }

  bool plain() {
    for (const TensorEntry* tensor : tensors_) {
      const bool fp8 = tensor->dtype == DType::kF8E4M3 || tensor->dtype == DType::kF8E5M2;
      if (fp8 && tensor->shape.rank() == 2) {
        ++report_.layers[tensor->dtype == DType::kF8E4M3 ? "fp8" : "fp8-e5m2"];
        if (report_.evidence.empty()) found(Dialect::kPlainFp8, "tensor " + tensor->name);
      }
    }
    if (!report_.layers.empty()) return true;
    for (const TensorEntry* tensor : tensors_) {
      const bool low = tensor->dtype == DType::kF4 || tensor->dtype == DType::kF8E8M0 ||
                       tensor->dtype == DType::kF6E2M3 || tensor->dtype == DType::kF6E3M2;
      if (low) return found(Dialect::kUnknown, "tensor " + tensor->name);
    }
    return false;
  }

  Tensors tensors_;
  const Metadata& metadata_;
  const std::string& file_;
  std::unordered_map<std::string_view, const TensorEntry*> by_name_;
  DialectReport report_;
};

}  // namespace

std::string_view to_string(Dialect dialect) {
  switch (dialect) {
    case Dialect::kNone:
      return "none";
    case Dialect::kHalftone:
      return "halftone";
    case Dialect::kComfyUI:
      return "comfyui";
    case Dialect::kCompressedTensors:
      return "compressed-tensors";
    case Dialect::kTorchao:
      return "torchao";
    case Dialect::kModelOpt:
      return "modelopt";
    case Dialect::kScaledFp8:
      return "modelopt or compressed-tensors";
    case Dialect::kPlainFp8:
      return "plain-fp8";
    case Dialect::kUnknown:
      return "unknown";
  }
  return "";
}

std::optional<Dialect> find_dialect(std::string_view name) {
  for (const Dialect dialect : {Dialect::kHalftone, Dialect::kComfyUI, Dialect::kModelOpt,
                                Dialect::kCompressedTensors, Dialect::kTorchao}) {
    if (name == to_string(dialect)) return dialect;
  }
  return {};
}

DialectReport detect_dialect(Tensors tensors, const Metadata& metadata, const std::string& file) {
  return Detector(tensors, metadata, file).detect();
}

}  // namespace halftone
