// The parameters of generated kernels, as the program fills them and the kernels read them.
#pragma once

namespace halftone::fused {

constexpr int kMostInputs = 24, kMostOutputs = 16;

struct Params {
  const void* inputs[kMostInputs];
  void* outputs[kMostOutputs];
  void* scales[kMostOutputs];
  float* global_scales[kMostOutputs];
  float static_scales[kMostOutputs];
  long long rows, rows_per_item;
};

}  // namespace halftone::fused
