#include "halftone/io/stored_weights.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/io/conversion_notes.h"
#include "halftone/io/dialect_markers.h"
#include "halftone/io/quantization_metadata.h"
#include "halftone/io/stored_parts.h"
#include "halftone/tensor/float_values.h"

namespace halftone {
namespace {

bool is_fp8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

class Reader {
 public:
  Reader(const Checkpoint& checkpoint, const StoredWeightOptions& options)
      : checkpoint_(checkpoint),
        options_(options),
        file_(checkpoint.path().string()),
        metadata_(checkpoint.metadata()) {}

  StoredWeights read() {
    std::vector<const TensorEntry*> entries;
    for (const Checkpoint::Item& item : checkpoint_.items()) entries.push_back(item.entry);
    out_.dialect = detect_dialect(entries, metadata_, file_).dialect;
    if (const auto notes = metadata_.find(kNotesKey); notes != metadata_.end()) {
      notes_ = parse_conversion_notes(notes->second, file_ + ": metadata " + kNotesKey);
    }
    if (out_.dialect == Dialect::kHalftone) {
      read_halftone();
    } else {
      read_comfy_markers();
      for (const TensorEntry* entry : entries) read_tensor(*entry);
      read_plain(entries);
      check_markers_used();
    }
    for (const auto& [name, note] : notes_) {
      if (!out_.weights.contains(name)) {
        fail(name, fmt::format("is in metadata {}, but not a quantized weight", kNotesKey));
      }
    }
    out_.unexplained = unexplained_parts(entries, out_);
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& tensor, const std::string& reason) const {
    throw Error(ErrorCode::kInvalidInput, file_, "tensor '{}': {}", printable(tensor), reason);
  }
  const TensorEntry* find(const std::string& name) const {
    const Checkpoint::Item* item = checkpoint_.find(name);
    return item == nullptr ? nullptr : item->entry;
  }

  // One positive number, F32 or 16 bits.
  float scalar(const std::string& name) const {
    const TensorEntry& entry = *find(name);
    if (!is_high_precision(entry.dtype) || entry.shape.checked_numel() != 1) {
      fail(name, fmt::format("is {} {} instead of one F32", name_of(entry.dtype), entry.shape));
    }
    const float value = as_f32(checkpoint_.tensor(name)).reshape({1}).as<float>()[0];
    if (!(value > 0) || !std::isfinite(value)) {
      fail(name, "is not a positive number");
    }
    return value;
  }

  void read_halftone() {
    if (options_.nibbles == NibbleOrder::kHigh || options_.scales == ScaleLayout::kSwizzled) {
      throw Error(ErrorCode::kUsage, file_,
                  "its metadata says that nibbles are low first and scales linear; that cannot be "
                  "overruled");
    }
    const auto entries = parse_quantization_metadata(
        metadata_.at(kQuantizationKey), fmt::format("{}: metadata {}", file_, kQuantizationKey));
    for (const auto& [name, entry] : entries) {
      StoredWeight weight;
      weight.name = weight.codes = name;
      weight.format = entry.format;
      weight.shape = weight.padded = entry.shape;
      weight.scales = scale_name(name);
      if (entry.format.global_scale) weight.global_scale = global_scale_name(name);
      check_halftone_parts(weight);
      if (find(input_scale_name(name)) != nullptr && takes_input_scale(entry.format)) {
        weight.input_scale_tensor = input_scale_name(name);
      }
      add(std::move(weight));
    }
  }

  void check_halftone_parts(const StoredWeight& weight) const {
    const Format& f = weight.format;
    const int64_t rows = weight.shape[0], cols = weight.shape[1];
    const auto check = [&](const std::string& name, DType dtype, const Shape& shape) {
      const TensorEntry* entry = find(name);
      if (entry == nullptr) fail(name, "is missing");
      if (entry->dtype != dtype || !(entry->shape == shape)) {
        fail(name, fmt::format("is {} {}, but {} takes {} {}", name_of(entry->dtype), entry->shape,
                               f.name, name_of(dtype), shape));
      }
    };
    check(weight.codes, code_dtype(f), {rows, f.code_bytes(cols)});
    check(weight.scales, scale_dtype(f), scale_shape(f, rows, cols));
    if (f.global_scale) check(weight.global_scale, DType::kF32, {1});
  }

  // LAYER.comfy_quant, the header's list, and the older tensor scaled_fp8.
  void read_comfy_markers() {
    if (const auto found = metadata_.find(kComfyMetadataKey); found != metadata_.end()) {
      const std::string where = fmt::format("{}: metadata {}", file_, kComfyMetadataKey);
      for (const auto& [layer, marker] : parse_comfy_metadata(found->second, where)) {
        comfy_[layer + "."] = marker;
      }
    }
    for (const Checkpoint::Item& item : checkpoint_.items()) {
      const TensorEntry& entry = *item.entry;
      if (const auto layer = layer_of(entry.name, "scaled_fp8")) {
        if (!is_fp8(entry.dtype) && entry.dtype != DType::kF32) {  // F32 stands for E4M3 too
          fail(entry.name,
               fmt::format("is {} instead of F8_E4M3 or F8_E5M2", name_of(entry.dtype)));
        }
        // ComfyUI's way to say it: a marker of two elements.
        legacy_[*layer] = entry.shape.checked_numel() == 2;
        out_.consumed.emplace(entry.name, "");
        continue;
      }
      const auto layer = layer_of(entry.name, "comfy_quant");
      if (!layer) continue;
      if (entry.dtype != DType::kU8 || entry.shape.rank() != 1) {
        fail(entry.name, fmt::format("is {} {} instead of the U8 bytes of a JSON text",
                                     name_of(entry.dtype), entry.shape));
      }
      const auto bytes = item.file->bytes(entry);
      const std::string where = fmt::format("{}: tensor '{}'", file_, printable(entry.name));
      const ComfyMarker marker =
          parse_comfy_marker({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where);
      const auto [known, fresh] = comfy_.emplace(*layer, marker);
      if (!fresh && (known->second.format != marker.format ||
                     known->second.full_precision != marker.full_precision)) {
        fail(entry.name, fmt::format("contradicts metadata {}", kComfyMetadataKey));
      }
      out_.consumed.emplace(entry.name, *layer + "weight");
    }
  }

  void read_tensor(const TensorEntry& entry) {
    if (const auto layer = layer_of(entry.name, "_weight_qdata")) {
      read_layer(*layer, torchao_parts(*layer));
    } else if (const auto packed = layer_of(entry.name, "weight_packed")) {
      read_layer(*packed, packed_parts(*packed));
    } else if (const auto plain = layer_of(entry.name, "weight")) {
      const bool fp4 = entry.dtype == DType::kU8 || entry.dtype == DType::kF4;
      const bool scaled =
          find(*plain + "weight_scale") != nullptr || find(*plain + "scale_weight") != nullptr;
      if (comfy_.contains(*plain) || ((fp4 || is_fp8(entry.dtype)) && scaled)) {
        read_layer(*plain, weight_parts(*plain));
      }
    }
  }

  PartNames torchao_parts(const std::string& layer) const {
    const std::string base = layer + "_weight_";
    PartNames parts{base + "qdata", base + "scale", base + "per_tensor_scale",
                    base + "act_per_tensor_scale"};
    parts.global_is_optional = true;
    return parts;
  }
  static PartNames packed_parts(const std::string& layer) {
    PartNames parts{layer + "weight_packed", layer + "weight_scale", layer + "weight_global_scale",
                    layer + "input_global_scale"};
    parts.reciprocal = true;
    return parts;
  }
  PartNames weight_parts(const std::string& layer) const {
    PartNames parts{layer + "weight", layer + "weight_scale", layer + "weight_scale_2",
                    layer + "input_scale"};
    if (find(parts.scales) == nullptr && find(layer + "scale_weight") != nullptr) {
      parts.scales = layer + "scale_weight";
      parts.input_scale = layer + "scale_input";
    }
    return parts;
  }

  void read_layer(const std::string& layer, const PartNames& names) {
    PartEntries parts{find(names.codes), find(names.scales), find(names.global_scale)};
    StoredWeight weight = describe_parts(names, parts, file_);
    weight.name = layer + "weight";
    const bool torchao = names.codes.ends_with("_weight_qdata");
    const bool comfy = out_.dialect == Dialect::kComfyUI && !torchao && !names.reciprocal;
    weight.swizzled = weight.high_nibble_first = comfy;
    if (comfy) apply_comfy(layer, weight);
    if (torchao) apply_torchao(weight);
    if (options_.scales != ScaleLayout::kAuto) {
      weight.swizzled = options_.scales == ScaleLayout::kSwizzled;
    }
    if (options_.nibbles != NibbleOrder::kAuto) {
      weight.high_nibble_first = options_.nibbles == NibbleOrder::kHigh;
    }
    weight.swizzled &= weight.format.span == ScaleSpan::kBlock;
    weight.high_nibble_first &= weight.format.element == ElementType::kE2M1;
    if (weight.format.span == ScaleSpan::kBlock) check_block_scales(weight, *parts.scales, file_);
    // An input's scale that the format has no use for stays unexplained.
    if (find(names.input_scale) != nullptr && takes_input_scale(weight.format)) {
      weight.input_scale_tensor = names.input_scale;
    }
    add(std::move(weight));
  }

  void apply_comfy(const std::string& layer, StoredWeight& weight) {
    if (weight.format.span == ScaleSpan::kBlock) {
      weight.padding = weight.format.element == ElementType::kE2M1 ? 16 : 32;
    }
    const auto marker = comfy_.find(layer);
    if (marker != comfy_.end()) {
      const Format& said = marker->second.format;
      if (said.element != weight.format.element || said.block != weight.format.block) {
        fail(weight.name,
             fmt::format("is marked as {}, but its tensors are {}", said.name, weight.format.name));
      }
      weight.full_precision = marker->second.full_precision;
      return;
    }
    for (const auto& [prefix, full_precision] : legacy_) {
      if (layer.starts_with(prefix)) weight.full_precision |= full_precision;
    }
  }

  void apply_torchao(StoredWeight& weight) {
    const auto found = metadata_.find(weight.name);
    if (found == metadata_.end()) return;
    const std::string where = fmt::format("{}: metadata {}", file_, printable(weight.name));
    const TorchaoMarker marker = parse_torchao_marker(found->second, where);
    const Format& f = weight.format;
    const std::string_view expected = f.element == ElementType::kE2M1 ? "NVFP4Tensor"
                                      : f.span == ScaleSpan::kBlock   ? "MXTensor"
                                                                      : "Float8Tensor";
    if (marker.type != expected) {
      fail(weight.name,
           fmt::format("is marked as {}, but its tensors are {}", marker.type, f.name));
    }
    const std::string base = weight.codes.substr(0, weight.codes.size() - 5);  // without "qdata"
    for (const std::string& part : marker.parts) {
      if (find(base + part) == nullptr) fail(base + part, "is missing");
    }
    weight.swizzled = marker.swizzled;
    weight.full_precision = marker.full_precision;
    if (marker.rounding && f.scale == ScaleType::kE8M0) weight.format.rounding = *marker.rounding;
  }

  // FP8 without any scale stands for itself. Only where no tool that writes scales was at work.
  void read_plain(const std::vector<const TensorEntry*>& entries) {
    for (const TensorEntry* entry : entries) {
      const bool matrix = is_fp8(entry->dtype) && entry->shape.rank() == 2;
      if (!matrix || out_.consumed.contains(entry->name) || has_part_name(entry->name)) continue;
      if (out_.dialect != Dialect::kPlainFp8 && out_.dialect != Dialect::kComfyUI) {
        fail(entry->name, fmt::format("is {}, but its scale is missing", name_of(entry->dtype)));
      }
      StoredWeight weight;
      weight.name = weight.codes = entry->name;
      weight.format =
          entry->dtype == DType::kF8E4M3 ? formats::fp8_tensor : formats::fp8_e5m2_tensor;
      weight.shape = weight.padded = entry->shape;
      for (const auto& [prefix, full_precision] : legacy_) {
        if (entry->name.starts_with(prefix)) weight.full_precision |= full_precision;
      }
      add(std::move(weight));
    }
  }

  void check_markers_used() const {
    for (const auto& [layer, marker] : comfy_) {
      if (!out_.weights.contains(layer + "weight")) {
        fail(layer + "weight",
             fmt::format("is marked as {}, but not in the file", marker.format.name));
      }
    }
  }

  void add(StoredWeight weight) {
    guess_rows(weight);
    if (!weight.input_scale_tensor.empty()) {
      const float stored = scalar(weight.input_scale_tensor);
      weight.input_scale = weight.reciprocal ? 1.0f / stored : stored;
    }
    if (const auto note = notes_.find(weight.name); note != notes_.end()) {
      apply_note(note->second, weight);
    }
    for (const std::string* part :
         {&weight.codes, &weight.scales, &weight.global_scale, &weight.input_scale_tensor}) {
      if (part->empty()) continue;
      const auto [known, fresh] = out_.consumed.emplace(*part, weight.name);
      if (!fresh) {
        fail(*part, fmt::format("is a part of '{}' and of '{}'", printable(known->second),
                                printable(weight.name)));
      }
    }
    const std::string name = weight.name;
    if (!out_.weights.emplace(name, std::move(weight)).second) fail(name, "is stored twice");
  }

  // A bias tells how many rows of a padded weight are its own.
  void guess_rows(StoredWeight& weight) const {
    const auto layer = layer_of(weight.name, "weight");
    const TensorEntry* bias = layer ? find(*layer + "bias") : nullptr;
    if (weight.padding == 1 || bias == nullptr || bias->shape.rank() != 1) return;
    const Shape shape{bias->shape[0], weight.padded[1]};
    if (could_be(weight, shape)) weight.shape = shape;
  }

  void apply_note(const ConversionNote& note, StoredWeight& weight) const {
    weight.full_precision |= note.full_precision;
    const auto contradicts = [&](const char* what) {
      fail(weight.name, fmt::format("metadata {} contradicts its {}", kNotesKey, what));
    };
    if (note.entry) {
      const Format& f = note.entry->format;
      // With one row a scale per row and a scale per tensor look the same.
      const bool row = f.scale == ScaleType::kF32 && weight.padded[0] == 1;
      if (f.element != weight.format.element || f.scale != weight.format.scale ||
          (f.span != weight.format.span && !row)) {
        contradicts("format");
      }
      weight.shape = weight.padded;
      if (!could_be(weight, note.entry->shape)) contradicts("shape");
      weight.shape = note.entry->shape;
      weight.format = f;
    }
    const auto gives = [](float exact, float stored) { return 1.0f / exact == stored; };
    if (note.global_scale) {
      if (!weight.reciprocal || !gives(*note.global_scale, scalar(weight.global_scale))) {
        contradicts("global scale");
      }
      weight.exact_global_scale = note.global_scale;
    }
    if (note.input_scale) {
      const bool stored = !weight.input_scale_tensor.empty();
      if (stored &&
          (!weight.reciprocal || !gives(*note.input_scale, scalar(weight.input_scale_tensor)))) {
        contradicts("input scale");
      }
      weight.input_scale = note.input_scale;
    }
  }

  const Checkpoint& checkpoint_;
  const StoredWeightOptions& options_;
  const std::string file_;
  const Metadata metadata_;
  ConversionNotes notes_;
  std::map<std::string, ComfyMarker> comfy_;  // by layer, "a.b."
  std::map<std::string, bool> legacy_;        // prefix -> whether inputs are not to be rounded
  StoredWeights out_;
};

}  // namespace

std::optional<NibbleOrder> find_nibble_order(std::string_view name) {
  if (name == "auto") return NibbleOrder::kAuto;
  if (name == "low") return NibbleOrder::kLow;
  if (name == "high") return NibbleOrder::kHigh;
  return {};
}

std::optional<ScaleLayout> find_scale_layout(std::string_view name) {
  if (name == "auto") return ScaleLayout::kAuto;
  if (name == "linear") return ScaleLayout::kLinear;
  if (name == "swizzled") return ScaleLayout::kSwizzled;
  return {};
}

const StoredWeight* StoredWeights::find(const std::string& name) const {
  const auto found = weights.find(name);
  return found == weights.end() ? nullptr : &found->second;
}

StoredWeights read_stored_weights(const Checkpoint& checkpoint,
                                  const StoredWeightOptions& options) {
  return Reader(checkpoint, options).read();
}

void check_explained(const StoredWeights& stored, const std::string& file) {
  if (stored.unexplained.empty()) return;
  std::string names;
  for (const std::string& name : stored.unexplained) {
    names += (names.empty() ? "'" : ", '") + printable(name) + "'";
  }
  throw Error(ErrorCode::kUnsupported, file,
              "{} tensors belong to quantized weights, but to nothing known of {}: {}",
              stored.unexplained.size(), to_string(stored.dialect), names);
}

}  // namespace halftone
