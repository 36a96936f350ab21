// Attention as two products and a softmax between them, a tile of queries at a time: for heads that
// are wider than fused kernels take, such as the single one of a VAE.
#pragma once

#include "halftone/kernels/cuda/context.h"

namespace halftone::cuda {

void product_attention(const AttentionArgs& args, const Stream& stream);
int64_t product_attention_workspace(const AttentionArgs& args);

// p [rows, keys] = softmax(scale * scores) over the keys that a row sees, in p's dtype. Row r is
// query first_query + r of `queries`. A row that sees no key becomes zeros.
struct SoftmaxArgs {
  const float* scores = nullptr;
  void* p = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, keys = 0, first_query = 0, queries = 0;
  float scale = 1;
  bool causal = false;
  const int32_t* length = nullptr;  // keys of this item; null: all
};
void softmax(const SoftmaxArgs& args, cudaStream_t stream);

}  // namespace halftone::cuda
