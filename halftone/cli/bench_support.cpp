#include "halftone/cli/bench_support.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/base/random.h"
#include "halftone/base/threads.h"
#include "halftone/numerics/bf16.h"

namespace halftone::cli {

Tensor random_values(DType dtype, const Shape& shape, uint64_t seed, float gain) {
  Tensor tensor = Tensor::empty(dtype, shape);
  const auto value = [&](int64_t i) {
    const uint32_t word = philox_word({seed, 0}, static_cast<uint64_t>(i));
    return (static_cast<float>(word >> 8) * 0x1p-23f - 1.0f) * 1.7320508f * gain;
  };
  std::byte* data = tensor.mutable_bytes().data();
  constexpr int64_t kGrain = 1 << 16;
  parallel_for(start_threads(0), tensor.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (dtype == DType::kF32) {
        reinterpret_cast<float*>(data)[i] = value(i);
      } else {
        reinterpret_cast<bf16*>(data)[i] = to_bf16(value(i));
      }
    }
  });
  return tensor;
}

Weights random_weights(const Graph& graph, DType dtype) {
  Weights weights;
  std::map<std::string, Tensor> by_shape;
  for (const auto& [name, value] : graph.weights()) {
    Tensor& tensor = by_shape[value.shape().str()];
    if (!tensor.defined()) {
      const Shape& shape = value.shape();
      const int64_t inputs = shape.rank() < 2 ? 1 : shape.numel() / shape[0];
      const float gain = shape.rank() < 2 ? 1 : 1 / std::sqrt(static_cast<float>(inputs));
      tensor = random_values(dtype, shape, by_shape.size(), gain);
    }
    weights.emplace(name, tensor);
  }
  return weights;
}

Inputs random_inputs(const Graph& graph) {
  Inputs inputs;
  uint64_t seed = 1000;
  for (const auto& [name, value] : graph.inputs()) {
    if (value.dtype() == DType::kI32) continue;  // lengths and ids are not for chance
    inputs.emplace(name, random_values(value.dtype(), value.shape(), seed++, 0.5f));
  }
  return inputs;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

zimage::TransformerConfig bench_config(const BenchOptions& options) {
  zimage::TransformerConfig config;
  const int64_t head = config.head_dim();
  if (options.dim % head != 0 || options.dim % 3 != 0) {
    throw Error(ErrorCode::kUsage, "--dim", "{} is no multiple of {}", options.dim, 3 * head);
  }
  config.dim = options.dim;
  config.heads = options.dim / head;
  return config;
}

double linear_flops(const zimage::TransformerConfig& c, int64_t tokens) {
  const auto d = static_cast<double>(c.dim), h = static_cast<double>(c.hidden());
  return 2 * static_cast<double>(tokens) * (4 * d * d + 3 * d * h);
}

double attention_flops(const zimage::TransformerConfig& c, int64_t tokens) {
  const auto t = static_cast<double>(tokens);
  return 4 * t * t * static_cast<double>(c.dim);
}

}  // namespace halftone::cli
