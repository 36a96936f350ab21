#include "halftone/io/dialect_markers.h"

#include <algorithm>
#include <array>

#include "halftone/io/json.h"
#include "halftone/io/refuse.h"

namespace halftone {
namespace {

using nlohmann::json;

struct ComfyName {
  std::string_view name;
  const Format* format;
};
constexpr ComfyName kComfyNames[] = {{"float8_e4m3fn", &formats::fp8_tensor},
                                     {"float8_e5m2", &formats::fp8_e5m2_tensor},
                                     {"mxfp8", &formats::mxfp8},
                                     {"nvfp4", &formats::nvfp4}};

ComfyMarker comfy_marker(const json& object, const std::string& where) {
  if (!object.is_object()) refuse_file(where, "is not a JSON object");
  ComfyMarker marker;
  for (const auto& [key, value] : object.items()) {
    if (key == "format") continue;
    if (key != "full_precision_matrix_mult") {
      throw Error(ErrorCode::kUnsupported, where, "unknown field '{}'", printable(key));
    }
    if (!value.is_boolean())
      refuse_file(where, "'full_precision_matrix_mult' is not true or false");
    marker.full_precision = value.get<bool>();
  }
  if (!object.contains("format") || !object["format"].is_string()) {
    refuse_file(where, "'format' is not a string");
  }
  const auto name = object["format"].get<std::string>();
  const auto* found = std::find_if(std::begin(kComfyNames), std::end(kComfyNames),
                                   [&](const ComfyName& known) { return known.name == name; });
  if (found == std::end(kComfyNames)) {
    throw Error(ErrorCode::kUnsupported, where,
                "format '{}' is not read; float8_e4m3fn, float8_e5m2, mxfp8 and nvfp4 are",
                printable(name));
  }
  marker.format = *found->format;
  return marker;
}

// {"_type": ..., "_data": ...}, as torchao writes every value that JSON has no type for.
json typed(std::string_view type, json data) {
  return {{"_type", type}, {"_data", std::move(data)}};
}

constexpr std::pair<std::string_view, ExponentRounding> kTorchaoRounding[] = {
    {"FLOOR", ExponentRounding::kFloor},
    {"CEIL", ExponentRounding::kCeil},
    {"EVEN", ExponentRounding::kEven},
    {"RCEIL", ExponentRounding::kRCeil}};

std::optional<ExponentRounding> torchao_rounding(const json& kwargs, const std::string& where) {
  if (!kwargs.is_object() || !kwargs.contains("_data") || !kwargs["_data"].is_object()) {
    refuse_file(where, "'act_quant_kwargs' is not what torchao writes");
  }
  const json& data = kwargs["_data"];
  if (!data.contains("scaling_mode")) return {};
  const json& mode = data["scaling_mode"];
  const json name = mode.is_object() ? mode.value("_data", json()) : json();
  for (const auto& [known, rounding] : kTorchaoRounding) {
    if (name == json(known)) return rounding;
  }
  refuse_file(where, "unknown 'scaling_mode'");
}

std::string_view torch_dtype(const Format& format) {
  return format.element == ElementType::kE5M2 ? "float8_e5m2" : "float8_e4m3fn";
}

json torchao_input(const Format& format, bool input_scale) {
  const json preference = typed("KernelPreference", "AUTO");
  if (format.element == ElementType::kE2M1) {
    return typed("QuantizeTensorToNVFP4Kwargs", {{"block_size", format.block},
                                                 {"is_swizzled_scales", false},
                                                 {"use_triton_kernel", false},
                                                 {"use_dynamic_per_tensor_scale", !input_scale}});
  }
  if (format.span == ScaleSpan::kBlock) {
    const auto* mode =
        std::find_if(std::begin(kTorchaoRounding), std::end(kTorchaoRounding),
                     [&](const auto& known) { return known.second == format.rounding; });
    return typed("QuantizeTensorToMXKwargs",
                 {{"elem_dtype", typed("torch.dtype", torch_dtype(format))},
                  {"block_size", format.block},
                  {"scaling_mode", typed("ScaleCalculationMode", mode->first)},
                  {"kernel_preference", preference},
                  {"is_swizzled_scales", false}});
  }
  const bool row = format.span == ScaleSpan::kRow;
  return typed(
      "QuantizeTensorToFloat8Kwargs",
      {{"float8_dtype", typed("torch.dtype", "float8_e4m3fn")},
       {"granularity", row ? typed("PerRow", {{"dim", -1}}) : typed("PerTensor", json::object())},
       {"mm_config", nullptr},
       {"hp_value_lb", nullptr},
       {"hp_value_ub", nullptr},
       {"kernel_preference", preference}});
}

}  // namespace

ComfyMarker parse_comfy_marker(std::string_view text, const std::string& where) {
  return comfy_marker(parse_json(text, where), where);
}

std::map<std::string, ComfyMarker> parse_comfy_metadata(std::string_view text,
                                                        const std::string& where) {
  const json object = parse_json(text, where);
  if (!object.is_object() || !object.contains("layers") || !object["layers"].is_object()) {
    refuse_file(where, "has no object 'layers'");
  }
  std::map<std::string, ComfyMarker> markers;
  for (const auto& [layer, marker] : object["layers"].items()) {
    markers.emplace(layer,
                    comfy_marker(marker, fmt::format("{}: layer '{}'", where, printable(layer))));
  }
  return markers;
}

std::optional<std::string> comfy_marker_json(const Format& format, bool full_precision) {
  for (const ComfyName& known : kComfyNames) {
    if (known.format->name != plain_format(format).name) continue;
    json object = {{"format", known.name}};
    if (full_precision) object["full_precision_matrix_mult"] = true;
    return object.dump();
  }
  return {};
}

TorchaoMarker parse_torchao_marker(std::string_view text, const std::string& where) {
  const json object = parse_json(text, where);
  if (!object.is_object() || !object.contains("_type") || !object["_type"].is_string()) {
    refuse_file(where, "'_type' is not a string");
  }
  TorchaoMarker marker;
  marker.type = object["_type"].get<std::string>();
  constexpr std::array<std::string_view, 3> kTypes = {"Float8Tensor", "MXTensor", "NVFP4Tensor"};
  if (std::find(kTypes.begin(), kTypes.end(), marker.type) == kTypes.end()) {
    throw Error(ErrorCode::kUnsupported, where,
                "'{}' is not read; Float8Tensor, MXTensor and NVFP4Tensor are",
                printable(marker.type));
  }
  if (!object.contains("_data") || !object["_data"].is_object()) {
    refuse_file(where, "'_data' is not an object");
  }
  const json& data = object["_data"];
  const json swizzled = data.value("is_swizzled_scales", json(false));
  if (!swizzled.is_boolean()) refuse_file(where, "'is_swizzled_scales' is not true or false");
  marker.swizzled = swizzled.get<bool>();
  const json kwargs = data.value("act_quant_kwargs", json());
  marker.full_precision = kwargs.is_null();
  if (!kwargs.is_null()) marker.rounding = torchao_rounding(kwargs, where);
  const json parts = object.value("_tensor_data_names", json());
  if (!parts.is_array()) refuse_file(where, "'_tensor_data_names' is not a list");
  for (const json& part : parts) {
    if (!part.is_string())
      refuse_file(where, "'_tensor_data_names' holds something else than names");
    marker.parts.push_back(part.get<std::string>());
  }
  return marker;
}

std::string torchao_marker_json(const Format& format, const Shape& shape, bool full_precision,
                                bool input_scale) {
  const json input = full_precision ? json() : torchao_input(format, input_scale);
  const json preference = typed("KernelPreference", "AUTO");
  const json dtype = typed("torch.dtype", "bfloat16");  // what dequantizing gives by default
  json data, parts = {"qdata", "scale"};
  std::string_view type = "Float8Tensor";
  if (format.element == ElementType::kE2M1) {
    type = "NVFP4Tensor";
    data = {{"is_swizzled_scales", false},
            {"use_triton_kernel", false},
            {"act_quant_kwargs", input},
            {"block_size", format.block},
            {"orig_dtype", dtype}};
    parts.push_back("per_tensor_scale");
    if (input_scale) parts.push_back("act_per_tensor_scale");
  } else if (format.span == ScaleSpan::kBlock) {
    type = "MXTensor";
    data = {{"elem_dtype", typed("torch.dtype", torch_dtype(format))},
            {"block_size", format.block},
            {"orig_dtype", dtype},
            {"kernel_preference", preference},
            {"act_quant_kwargs", input},
            {"is_swizzled_scales", false}};
  } else {
    const int64_t rows = format.span == ScaleSpan::kRow ? 1 : shape[0];
    data = {{"block_size", {rows, shape[1]}},
            {"mm_config", nullptr},
            {"act_quant_kwargs", input},
            {"kernel_preference", preference},
            {"dtype", dtype}};
  }
  return json{{"_type", type}, {"_data", data}, {"_tensor_data_names", parts}}.dump();
}

}  // namespace halftone
