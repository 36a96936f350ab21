#include "halftone/io/stored_parts.h"

#include <algorithm>
#include <set>

#include "halftone/io/refuse.h"
#include "halftone/numerics/swizzle.h"

namespace halftone {
namespace {

constexpr int64_t kLargestSide = int64_t{1} << 40;

std::string described(const TensorEntry& entry) {
  return fmt::format("is {} {}", name_of(entry.dtype), entry.shape);
}

// Endings of tensors that only a quantized weight has.
constexpr std::string_view kPartSuffixes[] = {
    "weight_scale",      "weight_scale_2",    "weight_scale_inv",    "weight_packed",
    "weight_zero_point", "input_scale",       "weight_global_scale", "input_global_scale",
    "comfy_quant",       "scale_weight",      "scale_input",         "input_zero_point",
    "weight_shape",      "weight_input_scale"};

std::string_view last_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

bool is_exponent(DType dtype) { return dtype == DType::kU8 || dtype == DType::kF8E8M0; }

// [R, C] of the matrix whose codes these are.
Shape matrix_shape(const TensorEntry& codes, const std::string& file) {
  // Two values of FP4 share a byte, and rows start with a byte of their own.
  const bool sane = codes.shape.rank() == 2 && codes.shape[0] > 0 && codes.shape[1] > 0 &&
                    codes.shape[0] < kLargestSide && codes.shape[1] < kLargestSide &&
                    (codes.dtype != DType::kF4 || codes.shape[1] % 2 == 0);
  if (!sane) refuse_tensor(file, codes.name, described(codes) + " instead of a matrix of codes");
  const int64_t per_element = codes.dtype == DType::kU8 ? 2 : 1;
  return {codes.shape[0], codes.shape[1] * per_element};
}

Format fp8_format(const TensorEntry& codes, const TensorEntry& scales, const std::string& file) {
  const bool e5m2 = codes.dtype == DType::kF8E5M2;
  if (is_exponent(scales.dtype)) return e5m2 ? formats::mxfp8_e5m2 : formats::mxfp8;
  const int64_t rows = codes.shape[0];
  const Shape& shape = scales.shape;
  if (is_high_precision(scales.dtype)) {
    if (shape.checked_numel() == 1) {
      return e5m2 ? formats::fp8_e5m2_tensor : formats::fp8_tensor;
    }
    if (shape == Shape{rows} || shape == Shape{rows, 1}) {
      return e5m2 ? formats::fp8_e5m2 : formats::fp8;
    }
  }
  refuse_tensor(file, scales.name,
                fmt::format("{}, but {} {} takes one F32, F32 [{}] or exponents per 32 columns",
                            described(scales), name_of(codes.dtype), codes.shape, rows));
}

}  // namespace

std::optional<std::string> layer_of(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return {};
  if (name != suffix && name[name.size() - suffix.size() - 1] != '.') return {};
  return std::string(name.substr(0, name.size() - suffix.size()));
}

bool has_part_name(std::string_view name) {
  const std::string_view own = last_of(name);
  return own.starts_with("_weight_") ||
         std::find(std::begin(kPartSuffixes), std::end(kPartSuffixes), own) !=
             std::end(kPartSuffixes);
}

std::vector<std::string> unexplained_parts(std::span<const TensorEntry* const> tensors,
                                           const StoredWeights& stored) {
  std::set<std::string, std::less<>> layers;
  for (const auto& [name, weight] : stored.weights) {
    const auto layer = layer_of(name, "weight");
    if (layer && !layer->empty()) layers.insert(*layer);
  }
  std::vector<std::string> names;
  for (const TensorEntry* tensor : tensors) {
    const std::string_view name = tensor->name, own = last_of(name);
    const std::string_view layer = name.substr(0, name.size() - own.size());
    const bool sibling = own != "bias" && layers.contains(layer);
    if (!stored.consumed.contains(tensor->name) && (sibling || has_part_name(name))) {
      names.push_back(tensor->name);
    }
  }
  return names;
}

bool takes_input_scale(const Format& format) { return format.scale != ScaleType::kE8M0; }

StoredWeight describe_parts(const PartNames& names, const PartEntries& parts,
                            const std::string& file) {
  const TensorEntry& codes = *parts.codes;
  const bool fp8 = codes.dtype == DType::kF8E4M3 || codes.dtype == DType::kF8E5M2;
  const bool fp4 = codes.dtype == DType::kU8 || codes.dtype == DType::kF4;
  if (!fp8 && !fp4) {
    throw Error(ErrorCode::kUnsupported, file,
                "tensor '{}': {}; codes of FP8 and NVFP4 are F8_E4M3, F8_E5M2 or U8",
                printable(codes.name), described(codes));
  }
  StoredWeight weight;
  weight.codes = names.codes;
  weight.shape = weight.padded = matrix_shape(codes, file);
  if (parts.scales == nullptr) refuse_tensor(file, names.scales, "is missing");
  weight.scales = names.scales;
  if (fp8) {
    weight.format = fp8_format(codes, *parts.scales, file);
    return weight;
  }
  if (is_exponent(parts.scales->dtype)) {
    throw Error(ErrorCode::kUnsupported, file,
                "tensor '{}': MXFP4 is not read; FP8, MXFP8 and NVFP4 are", printable(codes.name));
  }
  weight.format = formats::nvfp4;
  weight.reciprocal = names.reciprocal;
  if (parts.global_scale != nullptr) {
    const TensorEntry& global = *parts.global_scale;
    if (!is_high_precision(global.dtype) || global.shape.checked_numel() != 1) {
      refuse_tensor(file, global.name, described(global) + " instead of one F32");
    }
    weight.global_scale = names.global_scale;
  } else if (!names.global_is_optional) {
    refuse_tensor(file, names.global_scale, "is missing");
  }
  return weight;
}

void check_block_scales(const StoredWeight& weight, const TensorEntry& scales,
                        const std::string& file) {
  const Format& f = weight.format;
  const bool mx = f.scale == ScaleType::kE8M0;
  const int64_t rows = weight.padded[0], across = f.scales_per_row(weight.padded[1]);
  const int64_t tile_rows = (rows + 127) / 128, tile_cols = (across + 3) / 4;
  const Shape linear{rows, across};
  // The same bytes: as tiles put together, as tools view them, and flat.
  const Shape tiles{tile_rows * 128, tile_cols * 4}, torch{tile_rows * 32, tile_cols * 16};
  const bool is_swizzled = scales.shape == tiles || scales.shape == torch ||
                           scales.shape == Shape{swizzled_scale_bytes(rows, across)};
  const bool dtype = mx ? is_exponent(scales.dtype) : scales.dtype == DType::kF8E4M3;
  const bool shape = weight.swizzled ? is_swizzled : scales.shape == linear;
  if (dtype && shape) return;
  const bool other = dtype && (weight.swizzled ? scales.shape == linear : is_swizzled);
  refuse_tensor(file, scales.name,
                fmt::format("{}, but {} {} takes {} {} {}{}", described(scales), f.name,
                            weight.padded, weight.swizzled ? "swizzled" : "linear",
                            mx ? "F8_E8M0" : "F8_E4M3", weight.swizzled ? tiles : linear,
                            other ? fmt::format(" (it would fit as {} scales)",
                                                weight.swizzled ? "linear" : "swizzled")
                                  : ""));
}

}  // namespace halftone
