#include "halftone/models/family.h"

#include <fmt/format.h>

#include <algorithm>

#include "halftone/base/error.h"

namespace halftone {

Tensor stacked(std::span<const Condition* const> rows, const std::string& name,
               const Shape& shape) {
  std::vector<int64_t> dims = {static_cast<int64_t>(rows.size())};
  dims.insert(dims.end(), shape.dims().begin(), shape.dims().end());
  Tensor all = Tensor::empty(DType::kF32, Shape(dims));
  auto out = all.mutable_as<float>().begin();
  for (const Condition* row : rows) {
    const Tensor& one = row->at(name);
    HT_ASSERT(one.shape() == shape);
    out = std::copy(one.as<float>().begin(), one.as<float>().end(), out);
  }
  return all;
}

std::string DenoiserShape::str() const {
  return fmt::format("{} x {} + {}{}", rows, latents, text_tokens, ragged ? " ragged" : "");
}

DenoiserShape Denoiser::smallest_shape() const {
  const int64_t one = 1;
  return shape({channels(), patch(), patch()}, {&one, 1});
}

}  // namespace halftone
