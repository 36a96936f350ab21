// What codes stand for, written out: as the table's dequantize, and as operands of products.
#pragma once

#include "halftone/kernels/cuda/context.h"
#include "halftone/numerics/bf16.h"

namespace halftone::cuda {

// y [rows, cols] = code * block scale, without the scales of rows, tensors and global ones, which
// products apply to their sums. Exact for NVFP4, and for MXFP8 unless a scale leaves bf16's range.
void decode_blocks(const ConstView& x, int64_t rows, int64_t cols, bf16* y, const Stream& stream);

void fill_dequantize(Kernels& table);

}  // namespace halftone::cuda
