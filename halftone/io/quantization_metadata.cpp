#include "halftone/io/quantization_metadata.h"

#include "halftone/io/config_reader.h"
#include "halftone/io/json.h"
#include "halftone/io/refuse.h"

namespace halftone {
namespace {

constexpr int kMetadataVersion = 1;

// What shares a scale, in the words of weights: a row is an output channel.
std::string_view scale_span_name(const Format& format) {
  return format.span == ScaleSpan::kRow ? "channel" : to_string(format.span);
}

ExponentRounding parse_rounding(const std::string& text, const std::string& where,
                                const std::string& tensor) {
  for (const auto rounding : {ExponentRounding::kFloor, ExponentRounding::kCeil,
                              ExponentRounding::kEven, ExponentRounding::kRCeil}) {
    if (text == to_string(rounding)) return rounding;
  }
  refuse_tensor(where, tensor, "unknown scale_rounding '" + printable(text) + "'");
}

Shape parse_shape(const nlohmann::json& json, const std::string& where, const std::string& tensor) {
  const bool pair = json.is_array() && json.size() == 2 && json[0].is_number_unsigned() &&
                    json[1].is_number_unsigned();
  constexpr uint64_t kMost = uint64_t{1} << 40;
  if (!pair || json[0].get<uint64_t>() > kMost || json[1].get<uint64_t>() > kMost) {
    refuse_tensor(where, tensor, "'shape' is not [rows, columns]");
  }
  const Shape shape{json[0].get<int64_t>(), json[1].get<int64_t>()};
  if (!shape.checked_bytes(DType::kF32)) refuse_tensor(where, tensor, "'shape' overflows");
  return shape;
}

// A field that says how something is done, in the one way that is known.
void expect(const ConfigReader& read, const char* field, std::string_view only) {
  if (read.text(field) != only) read.fail(field, fmt::format("is not '{}'", only));
}

QuantizedEntry parse_entry(const nlohmann::json& json, const std::string& where,
                           const std::string& tensor) {
  const ConfigReader read(json, fmt::format("{}: tensor '{}'", where, printable(tensor)));
  const std::string name = read.text("format");
  const auto found = find_format(name);
  // Variants are told by their fields.
  if (!found || !found->quantized() || plain_format(*found) != *found)
    refuse_tensor(where, tensor, "unknown format '" + printable(name) + "'");
  QuantizedEntry entry{*found, parse_shape(read.field("shape"), where, tensor)};
  Format& format = entry.format;
  expect(read, "rounding", "nearest-even");
  expect(read, "scale", scale_span_name(format));
  if (format.span == ScaleSpan::kBlock) {
    if (read.field("block") != nlohmann::json(format.block)) {
      read.fail("block", fmt::format("is not {}", format.block));
    }
    expect(read, "scale_layout", "linear");
  }
  if (format.scale == ScaleType::kE8M0) {
    format.rounding = parse_rounding(read.text("scale_rounding"), where, tensor);
  }
  if (format.element == ElementType::kE2M1) {
    expect(read, "order", "low-nibble-first");
    format.min_block_scale = read.real("min_block_scale");
    format.four_over_six = read.boolean("four_over_six");
    format.tile_rows = static_cast<int>(read.integer("tile_rows", 0, 1, 16));
    if (format.tile_rows != 1 && format.tile_rows != 16) {
      read.fail("tile_rows", "is not 1 or 16");
    }
    format = named_format(format);
  }
  if (const std::string why = why_invalid(format); !why.empty()) refuse_tensor(where, tensor, why);
  return entry;
}

}  // namespace

std::string scale_name(std::string_view tensor) { return std::string(tensor) + "_scale"; }
std::string global_scale_name(std::string_view tensor) { return std::string(tensor) + "_scale_2"; }
std::string input_scale_name(std::string_view tensor) {
  return std::string(tensor) + "_input_scale";
}

std::string to_json(const QuantizationMetadata& metadata) {
  nlohmann::json tensors = nlohmann::json::object();
  for (const auto& [name, entry] : metadata) {
    const Format& f = entry.format;
    nlohmann::json json = {{"format", plain_format(f).name},
                           {"shape", entry.shape.dims()},
                           {"scale", scale_span_name(f)},
                           {"rounding", "nearest-even"}};
    if (f.span == ScaleSpan::kBlock) json.update({{"block", f.block}, {"scale_layout", "linear"}});
    if (f.scale == ScaleType::kE8M0) json["scale_rounding"] = to_string(f.rounding);
    if (f.element == ElementType::kE2M1) {
      json.update({{"order", "low-nibble-first"},
                   {"min_block_scale", f.min_block_scale},
                   {"four_over_six", f.four_over_six},
                   {"tile_rows", f.tile_rows}});
    }
    tensors[name] = std::move(json);
  }
  return json_text({{"version", kMetadataVersion}, {"tensors", std::move(tensors)}},
                   std::string("metadata ") + kQuantizationKey);
}

QuantizationMetadata parse_quantization_metadata(std::string_view text, const std::string& where) {
  const nlohmann::json json = parse_json(text, where);
  if (!json.is_object() ||
      json.value("version", nlohmann::json()) != nlohmann::json(kMetadataVersion)) {
    throw Error(ErrorCode::kUnsupported, where, "{} is not of version {}", kQuantizationKey,
                kMetadataVersion);
  }
  const ConfigReader tensors = ConfigReader(json, where).object("tensors");
  QuantizationMetadata metadata;
  for (const auto& [name, entry] : tensors.json().items()) {
    metadata.emplace(name, parse_entry(entry, where, name));
  }
  return metadata;
}

QuantizedTensor load_quantized(const Checkpoint& checkpoint, const std::string& name,
                               const QuantizedEntry& entry) {
  const auto part = [&](const std::string& tensor, DType dtype, const Shape& shape) {
    Tensor found = checkpoint.tensor(tensor);
    if (found.dtype() != dtype || !(found.shape() == shape)) {
      refuse_tensor(checkpoint.path().string(), tensor,
                    fmt::format("is {} {}, but {} takes {} {}", name_of(found.dtype()),
                                found.shape(), entry.format.name, name_of(dtype), shape));
    }
    return found;
  };
  const Format& f = entry.format;
  const int64_t rows = entry.shape[0], cols = entry.shape[1];
  QuantizedTensor q{f, entry.shape, 1, {}, {}, {}};
  q.codes = part(name, code_dtype(f), {rows, f.code_bytes(cols)});
  q.scales = part(scale_name(name), scale_dtype(f), scale_shape(f, rows, cols));
  if (f.global_scale) q.global_scale = part(global_scale_name(name), DType::kF32, {1});
  return q;
}

}  // namespace halftone
