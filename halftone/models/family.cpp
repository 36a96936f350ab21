#include "halftone/models/family.h"

#include <fmt/format.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/text.h"

namespace halftone {

std::string DenoiserShape::str() const {
  return fmt::format("{} x {} + {}{}", rows, latents, text_tokens, ragged ? " ragged" : "");
}

Tensor stacked(std::span<const Condition* const> rows, const std::string& name) {
  HT_ASSERT(!rows.empty());
  const Tensor& first = rows[0]->at(name);
  std::vector<int64_t> dims = {static_cast<int64_t>(rows.size())};
  dims.insert(dims.end(), first.shape().dims().begin(), first.shape().dims().end());
  Tensor all = Tensor::empty(first.dtype(), Shape(dims));
  auto to = all.mutable_bytes().begin();
  for (const Condition* row : rows) {
    const Tensor& one = row->at(name);
    HT_ASSERT(one.shape() == first.shape() && one.dtype() == first.dtype());
    to = std::copy(one.bytes().begin(), one.bytes().end(), to);
  }
  return all;
}

Tensor PictureSizes::tensor() const {
  Tensor sizes = Tensor::empty(DType::kF32, {6});
  const int64_t numbers[] = {original_height, original_width, top, left, height, width};
  std::transform(std::begin(numbers), std::end(numbers), sizes.mutable_as<float>().begin(),
                 [](int64_t number) { return static_cast<float>(number); });
  return sizes;
}

void check_prompt_text(const std::string& prompt) {
  constexpr size_t kMostBytes = 1 << 16;  // many times what any prompt of so many tokens takes
  if (prompt.size() > kMostBytes) {
    throw Error(ErrorCode::kUsage, "prompt", "{} bytes are more than the {} that are looked at",
                prompt.size(), kMostBytes);
  }
  if (!is_valid_utf8(prompt)) {
    throw Error(ErrorCode::kUsage, "prompt", "'{}' is not UTF-8", printable(prompt));
  }
}

std::shared_ptr<Graph> Conditioner::build_rows(size_t, int64_t, const BuildOptions&) const {
  throw Error(ErrorCode::kUnsupported, "train-text", "these text encoders are not trained");
}

NamedTensors Conditioner::inputs_of_rows(size_t, std::span<const PromptTokens>) const {
  throw Error(ErrorCode::kUnsupported, "train-text", "these text encoders are not trained");
}

std::map<std::string, Value> Conditioner::joined(
    std::span<const std::map<std::string, Value>>) const {
  throw Error(ErrorCode::kUnsupported, "train-text", "these text encoders are not trained");
}

DenoiserShape Denoiser::smallest_shape() const {
  const int64_t one = 1;
  return shape({channels(), patch(), patch()}, {&one, 1});
}

}  // namespace halftone
