#include "halftone/runtime/program_views.h"

#include <fmt/format.h>

namespace halftone {

std::string mismatch(const Weight& weight, const ValueType& type) {
  if (shape_of(weight) != type.shape) {
    return fmt::format("has shape {} instead of {}", shape_of(weight), type.shape);
  }
  const auto* quantized = std::get_if<QuantizedTensor>(&weight);
  if (quantized == nullptr && type.quantized) {
    return fmt::format("is not quantized to {}", type.quantized->name);
  }
  if (quantized == nullptr && !is_high_precision(std::get<Tensor>(weight).dtype()) &&
      std::get<Tensor>(weight).dtype() != DType::kF64) {
    return fmt::format("is stored as {}, which is not computed with",
                       name_of(std::get<Tensor>(weight).dtype()));
  }
  if (quantized != nullptr && (!type.quantized || quantized->format != *type.quantized)) {
    return fmt::format("is {} instead of {}", quantized->format.name,
                       type.quantized ? type.quantized->name : "high precision");
  }
  return {};
}

bool is_on_host(const Weight& weight) {
  const auto* quantized = std::get_if<QuantizedTensor>(&weight);
  const Tensor& stored = quantized != nullptr ? quantized->codes : std::get<Tensor>(weight);
  return stored.byte_size() > 0 && stored.device() == Device{};
}

ConstView view_of(const Weight& weight) {
  if (const auto* tensor = std::get_if<Tensor>(&weight)) {
    ConstView view{tensor->address(), tensor->dtype(), tensor->shape()};
    view.channels_last = tensor->channels_last();
    return view;
  }
  const auto& q = std::get<QuantizedTensor>(weight);
  ConstView view{q.codes.address(), DType::kF32, q.shape, &q.format, q.scales.address()};
  if (q.format.global_scale) {
    view.global_scale = reinterpret_cast<const float*>(q.global_scale.address());
  }
  return view;
}

View view_at(const ValueType& type, std::byte* data) {
  View view{data, type.dtype, type.shape};
  if (!type.quantized) return view;
  const int64_t cols = type.shape[-1], rows = cols == 0 ? 0 : type.shape.numel() / cols;
  const int64_t items = type.items();
  const QuantizedLayout layout = quantized_layout(*type.quantized, rows, cols, items);
  view.format = &*type.quantized;
  view.scales = data + layout.scales;
  view.global_scale = reinterpret_cast<float*>(data + layout.global_scale);
  view.rows_per_scale = items == 0 || type.quantized->static_scale ? 0 : rows / items;
  return view;
}

ConstView constant(const View& v) {
  return {v.data, v.dtype, v.shape, v.format, v.scales, v.global_scale, v.rows_per_scale};
}

}  // namespace halftone
