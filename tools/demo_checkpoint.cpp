// Writes a checkpoint of random weights with the names and proportions of a small diffusion
// transformer, for `make demo`. A few output channels are large, as trained ones are.
#include <fmt/format.h>

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/base/random.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/numerics/bf16.h"

namespace halftone {
namespace {

constexpr int64_t kDim = 768, kHidden = 2048, kLayers = 6;

// Roughly Gaussian: the sum of eight uniform bytes. Deterministic in (stream, index).
float bell(uint64_t stream, uint64_t index) {
  const PhiloxBlock block = philox_block({2026, stream}, index);
  int sum = 0;
  for (int i = 0; i < 8; ++i) sum += static_cast<int>(block.word[i / 4] >> (8 * (i % 4)) & 255);
  return static_cast<float>(sum - 1020) / 209.0f;
}

Tensor matrix(const Shape& shape, uint64_t stream) {
  Tensor tensor = Tensor::empty(DType::kBF16, shape);
  auto values = tensor.mutable_as<bf16>();
  const int64_t cols = shape[-1];
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const bool large = shape.rank() == 2 && (i / cols) % 97 == 0;
    const float scale = (large ? 8.0f : 1.0f) / std::sqrt(static_cast<float>(cols));
    values[i] = to_bf16(bell(stream, static_cast<uint64_t>(i)) * scale);
  }
  return tensor;
}

void write_checkpoint(const char* path) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  const auto add = [&](const std::string& name, const Shape& shape) {
    tensors.emplace_back(name, matrix(shape, tensors.size()));
  };
  add("x_embedder.weight", {kDim, 64});
  add("x_embedder.bias", {kDim});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    add(prefix + "attention_norm1.weight", {kDim});
    add(prefix + "ffn_norm1.weight", {kDim});
    for (const char* name : {"to_q", "to_k", "to_v", "to_out.0"}) {
      add(prefix + "attention." + name + ".weight", {kDim, kDim});
    }
    add(prefix + "feed_forward.w1.weight", {kHidden, kDim});
    add(prefix + "feed_forward.w2.weight", {kDim, kHidden});
    add(prefix + "feed_forward.w3.weight", {kHidden, kDim});
  }
  add("final_layer.weight", {64, kDim});
  write_safetensors(path, tensors, {{"format", "pt"}});
}

}  // namespace
}  // namespace halftone

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: demo_checkpoint OUT.safetensors\n");
    return 2;
  }
  try {
    halftone::write_checkpoint(argv[1]);
  } catch (const halftone::Error& error) {
    fmt::print(stderr, "demo_checkpoint: {}\n", error.what());
    return 1;
  }
  return 0;
}
