// Attention in float for any shape: what runs where the library's kernels do not take a problem.
// Head sizes up to 256; queries, keys and values in F32 or BF16 and with token strides.
#pragma once

#include "halftone/kernels/kernels.h"

namespace halftone::cuda {

void plain_attention(const AttentionArgs& args, const Stream& stream);
int64_t plain_attention_workspace(const AttentionArgs& args);

// Without atomics: the same bits on every run.
void plain_attention_grad(const AttentionGradArgs& args, const Stream& stream);
int64_t plain_attention_grad_workspace(const AttentionGradArgs& args);

}  // namespace halftone::cuda
