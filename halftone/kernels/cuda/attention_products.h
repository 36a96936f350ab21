// Attention as two products and a softmax between them, a tile of queries at a time: for heads that
// are wider than fused kernels take, such as the single one of a VAE.
#pragma once

#include "halftone/kernels/cuda/context.h"

namespace halftone::cuda {

void product_attention(const AttentionArgs& args, const Stream& stream);
int64_t product_attention_workspace(const AttentionArgs& args);

void product_attention_grad(const AttentionGradArgs& args, const Stream& stream);
int64_t product_attention_grad_workspace(const AttentionGradArgs& args);

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

// ds [rows, keys] = p (dp - the row's sum of p dp) scale, in p's dtype; ds may be p itself.
struct SoftmaxGradArgs {
  const void* p = nullptr;
  const float* dp = nullptr;
  void* ds = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, keys = 0;
  float scale = 1;
};
void softmax_grad(const SoftmaxGradArgs& args, cudaStream_t stream);

}  // namespace halftone::cuda
