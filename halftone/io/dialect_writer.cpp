#include "halftone/io/dialect_writer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/io/dialect_markers.h"
#include "halftone/numerics/swizzle.h"

namespace halftone {
namespace {

bool is_fp4(const Format& f) { return f.element == ElementType::kE2M1; }
bool is_block(const Format& f) { return f.span == ScaleSpan::kBlock; }
bool is_row(const Format& f) { return f.span == ScaleSpan::kRow; }

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// ComfyUI rounds the sides of weights with block scales up.
Shape comfy_shape(const Format& f, const Shape& shape) {
  const int64_t multiple = is_fp4(f) ? 16 : is_block(f) ? 32 : 1;
  return {round_up(shape[0], multiple), round_up(shape[1], multiple)};
}

// "a.b." of "a.b.weight".
std::string layer_of_weight(const std::string& weight) {
  return weight.substr(0, weight.size() - std::string_view("weight").size());
}

Tensor scalar(const Shape& shape, float value) {
  Tensor tensor = Tensor::empty(DType::kF32, shape);
  tensor.mutable_as<float>()[0] = value;
  return tensor;
}

// A float whose reciprocal is x, where one of those next to 1/x is; otherwise 1/x.
float inverse(float x) {
  const float nearest = 1.0f / x;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float r :
       {nearest, std::nextafter(nearest, 0.0f), std::nextafter(nearest, kInfinity)}) {
    if (1.0f / r == x) return r;
  }
  return nearest;
}
bool survives_inversion(float x) { return 1.0f / inverse(x) == x; }

// Padded with zeros, high nibble first.
Tensor comfy_codes(const QuantizedTensor& q) {
  const Shape padded = comfy_shape(q.format, q.shape);
  const int64_t across = q.format.code_bytes(padded[1]), bytes = q.codes.shape()[1];
  if (padded == q.shape && !is_fp4(q.format)) return q.codes;
  Tensor out = Tensor::zeros(q.codes.dtype(), {padded[0], across});
  const auto* from = reinterpret_cast<const uint8_t*>(q.codes.bytes().data());
  auto* to = reinterpret_cast<uint8_t*>(out.mutable_bytes().data());
  for (int64_t r = 0; r < q.shape[0]; ++r) {
    for (int64_t i = 0; i < bytes; ++i) {
      const uint8_t b = from[r * bytes + i];
      to[r * across + i] = is_fp4(q.format) ? static_cast<uint8_t>(b << 4 | b >> 4) : b;
    }
  }
  return out;
}

Shape swizzled_shape(const Format& f, const Shape& shape) {
  return {round_up(shape[0], 128), round_up(f.scales_per_row(shape[1]), 4)};
}

Tensor swizzled(const QuantizedTensor& q, DType dtype) {
  const auto bytes = q.scales.bytes();
  const auto tiles = swizzle_scales({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                                    q.shape[0], q.format.scales_per_row(q.shape[1]));
  Tensor out = Tensor::empty(dtype, swizzled_shape(q.format, q.shape));
  std::copy(tiles.begin(), tiles.end(), reinterpret_cast<uint8_t*>(out.mutable_bytes().data()));
  return out;
}

Tensor text_tensor(const std::string& text) {
  Tensor tensor = Tensor::empty(DType::kU8, {static_cast<int64_t>(text.size())});
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(tensor.mutable_bytes().data()));
  return tensor;
}

// Collects the tensors of one weight; most parts are the canonical ones under another type.
class Planner {
 public:
  explicit Planner(const WeightInfo& weight) : w_(weight), f_(weight.format) {}

  std::vector<PlannedTensor> plan(Dialect dialect) {
    switch (dialect) {
      case Dialect::kComfyUI:
        comfyui();
        break;
      case Dialect::kModelOpt:
        modelopt();
        break;
      case Dialect::kCompressedTensors:
        compressed_tensors();
        break;
      case Dialect::kTorchao:
        torchao();
        break;
      default:
        halftone();
        break;
    }
    return std::move(out_);
  }

 private:
  int64_t rows() const { return w_.shape[0]; }
  Shape canonical_scales() const { return scale_shape(f_, rows(), w_.shape[1]); }

  void add(const std::string& name, DType dtype, const Shape& shape,
           std::function<Tensor(const QuantizedTensor&)> make) {
    out_.push_back({{name, dtype, shape}, std::move(make)});
  }
  void codes(const std::string& name) {
    add(name, code_dtype(f_), {rows(), f_.code_bytes(w_.shape[1])},
        [](const QuantizedTensor& q) { return q.codes; });
  }
  void scales(const std::string& name, DType dtype, const Shape& shape) {
    add(name, dtype, shape,
        [=](const QuantizedTensor& q) { return q.scales.bitcast(dtype, shape); });
  }
  void number(const std::string& name, const Shape& shape, float value) {
    add(name, DType::kF32, shape, [=](const QuantizedTensor&) { return scalar(shape, value); });
  }
  // A copy of the bits, whatever they are.
  void global_scale(const std::string& name, const Shape& shape) {
    add(name, DType::kF32, shape,
        [=](const QuantizedTensor& q) { return q.global_scale.reshape(shape); });
  }

  void halftone() {
    codes(w_.name);
    scales(scale_name(w_.name), scale_dtype(f_), canonical_scales());
    if (f_.global_scale) global_scale(global_scale_name(w_.name), {1});
    if (w_.input_scale) number(input_scale_name(w_.name), {1}, *w_.input_scale);
  }

  void comfyui() {
    const std::string layer = layer_of_weight(w_.name);
    const Shape padded = comfy_shape(f_, w_.shape);
    add(w_.name, code_dtype(f_), {padded[0], f_.code_bytes(padded[1])}, comfy_codes);
    if (is_block(f_)) {
      const DType dtype = is_fp4(f_) ? DType::kF8E4M3 : DType::kU8;
      add(layer + "weight_scale", dtype, swizzled_shape(f_, w_.shape),
          [dtype](const QuantizedTensor& q) { return swizzled(q, dtype); });
    } else {
      scales(layer + "weight_scale", DType::kF32, {});
    }
    if (f_.global_scale) global_scale(layer + "weight_scale_2", {});
    if (w_.input_scale) number(layer + "input_scale", {}, *w_.input_scale);
    const std::string marker = *comfy_marker_json(f_, w_.full_precision);
    add(layer + "comfy_quant", DType::kU8, {static_cast<int64_t>(marker.size())},
        [marker](const QuantizedTensor&) { return text_tensor(marker); });
  }

  void modelopt() {
    const std::string layer = layer_of_weight(w_.name);
    codes(w_.name);
    const Shape shape = is_row(f_) ? Shape{rows()} : is_block(f_) ? canonical_scales() : Shape{};
    scales(layer + "weight_scale", scale_dtype_without_e8m0(), shape);
    if (f_.global_scale) global_scale(layer + "weight_scale_2", {});
    if (w_.input_scale) number(layer + "input_scale", {}, *w_.input_scale);
  }

  void compressed_tensors() {
    const std::string layer = layer_of_weight(w_.name);
    codes(is_fp4(f_) ? layer + "weight_packed" : w_.name);
    scales(layer + "weight_scale", scale_dtype_without_e8m0(), canonical_scales());
    if (!is_fp4(f_)) {
      if (w_.input_scale) number(layer + "input_scale", {1}, *w_.input_scale);
      return;
    }
    number(layer + "weight_global_scale", {1}, inverse(w_.global_scale));
    if (w_.input_scale) number(layer + "input_global_scale", {1}, inverse(*w_.input_scale));
  }

  void torchao() {
    const std::string base = layer_of_weight(w_.name) + "_weight_";
    codes(base + "qdata");
    const bool tensor = f_.span == ScaleSpan::kTensor;
    scales(base + "scale", scale_dtype(f_), tensor ? Shape{1, 1} : canonical_scales());
    if (f_.global_scale) global_scale(base + "per_tensor_scale", {});
    if (f_.global_scale && w_.input_scale) {
      number(base + "act_per_tensor_scale", {}, *w_.input_scale);
    }
  }

  // Exponents as plain bytes.
  DType scale_dtype_without_e8m0() const {
    const DType dtype = scale_dtype(f_);
    return dtype == DType::kF8E8M0 ? DType::kU8 : dtype;
  }

  const WeightInfo& w_;
  const Format& f_;
  std::vector<PlannedTensor> out_;
};

// What reading the file would not give back by itself.
ConversionNote note_for(Dialect dialect, const WeightInfo& w) {
  ConversionNote note;
  const bool halftone = dialect == Dialect::kHalftone, torchao = dialect == Dialect::kTorchao;
  if (!halftone) {
    const bool padded = dialect == Dialect::kComfyUI && comfy_shape(w.format, w.shape) != w.shape;
    const bool like_tensor = is_row(w.format) && w.shape[0] == 1;
    if (w.format != *find_format(plain_format(w.format).name) || padded || like_tensor) {
      note.entry = QuantizedEntry{w.format, w.shape};
    }
  }
  if (dialect == Dialect::kCompressedTensors && is_fp4(w.format)) {
    if (!survives_inversion(w.global_scale)) note.global_scale = w.global_scale;
    if (w.input_scale && !survives_inversion(*w.input_scale)) note.input_scale = w.input_scale;
  }
  if (torchao && !w.format.global_scale) note.input_scale = w.input_scale;
  note.full_precision = w.full_precision && dialect != Dialect::kComfyUI && !torchao;
  return note;
}

}  // namespace

WeightInfo weight_info(const std::string& name, const QuantizedTensor& weight,
                       const std::optional<float>& input_scale, bool full_precision) {
  WeightInfo info{name, weight.format, weight.shape, 1, input_scale, full_precision};
  if (weight.format.global_scale) info.global_scale = weight.global_scale.as<float>()[0];
  return info;
}

std::string why_not_in(Dialect dialect, const WeightInfo& weight) {
  const Format& f = weight.format;
  const bool e5m2 = f.element == ElementType::kE5M2;
  if (dialect == Dialect::kHalftone) return {};
  const bool named = weight.name == "weight" || weight.name.ends_with(".weight");
  if (!named) return "only tensors called *.weight have a place there; halftone takes any";
  if (dialect == Dialect::kTorchao && weight.name == "weight") {
    return "it needs a layer's name before '.weight'";
  }
  if (dialect == Dialect::kComfyUI && is_row(f)) {
    return "it has a scale per row, and ComfyUI one per tensor; quantize to fp8-tensor, or convert "
           "to modelopt, compressed-tensors or torchao";
  }
  if (dialect == Dialect::kComfyUI && e5m2 && is_block(f)) {
    return "ComfyUI has no MXFP8 of E5M2; halftone and torchao do";
  }
  const bool e4m3_only = dialect == Dialect::kModelOpt || dialect == Dialect::kCompressedTensors;
  if (e4m3_only && e5m2) return "it is E5M2, which halftone and torchao hold";
  if (dialect != Dialect::kComfyUI && is_block(f) && weight.shape[1] % f.block != 0) {
    return fmt::format("its {} columns are no multiple of {}, which only halftone and comfyui hold",
                       weight.shape[1], f.block);
  }
  if (dialect == Dialect::kCompressedTensors && is_fp4(f)) {
    const auto invertible = [](float x) { return x > 0 && std::isnormal(1.0f / x); };
    if (!invertible(weight.global_scale) ||
        (weight.input_scale && !invertible(*weight.input_scale))) {
      return "a scale has no reciprocal in F32, which is what is stored there";
    }
  }
  return {};
}

std::vector<PlannedTensor> plan_tensors(Dialect dialect, const WeightInfo& weight,
                                        const std::string& file) {
  if (const std::string why = why_not_in(dialect, weight); !why.empty()) {
    throw Error(ErrorCode::kUnsupported, file, "tensor '{}': {} cannot be written for {}: {}",
                printable(weight.name), weight.format.name, to_string(dialect), why);
  }
  return Planner(weight).plan(dialect);
}

std::vector<std::pair<std::string, Tensor>> dialect_tensors(Dialect dialect,
                                                            const WeightInfo& weight,
                                                            const QuantizedTensor& q,
                                                            const std::string& file) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const PlannedTensor& planned : plan_tensors(dialect, weight, file)) {
    tensors.emplace_back(planned.spec.name, planned.make(q));
  }
  return tensors;
}

Metadata dialect_metadata(Dialect dialect, std::span<const WeightInfo> weights,
                          std::span<const std::string> others) {
  Metadata metadata;
  ConversionNotes notes;
  QuantizationMetadata entries;
  for (const WeightInfo& weight : weights) {
    if (const auto note = note_for(dialect, weight); !note.empty()) notes[weight.name] = note;
    entries[weight.name] = {weight.format, weight.shape};
  }
  if (!notes.empty()) metadata[kNotesKey] = notes_json(notes);
  if (dialect == Dialect::kHalftone) metadata[kQuantizationKey] = to_json(entries);
  if (dialect == Dialect::kModelOpt || dialect == Dialect::kCompressedTensors) {
    metadata[kDialectKey] = to_string(dialect);
  }
  if (dialect != Dialect::kTorchao) return metadata;
  nlohmann::json names = nlohmann::json::array();
  for (const WeightInfo& w : weights) {
    metadata[w.name] = torchao_marker_json(w.format, w.shape, w.full_precision,
                                           w.format.global_scale && w.input_scale);
    names.push_back(w.name);
  }
  for (const std::string& name : others) {
    // torchao splits every listed name at its last dot, and hands back what is not listed as it is.
    if (name.find('.') == std::string::npos) continue;
    metadata[name] = R"({"_type": "Tensor"})";
    names.push_back(name);
  }
  metadata["tensor_names"] = names.dump();
  return metadata;
}

}  // namespace halftone
