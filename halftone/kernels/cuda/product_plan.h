// How a GPU multiplies two matrices: a pure function of the problem and the GPU's generation, so
// that every generation's choice is tested without owning one.
#pragma once

#include "halftone/kernels/op_args.h"

namespace halftone::cuda {

// What is done with an operand before the product.
enum class Preparation : uint8_t {
  kAsStored,
  kToFloat,  // widened to F32, exactly
  kRound,    // wider weights to BF16: what precision bf16 means on tensor cores
  kValues,   // codes and all scales to F32: scales along the contraction cannot wait for the result
  kDecode,   // codes and block scales to BF16, exactly; other scales are applied to the result
  kSplit,    // F32 as the sum of three BF16, exactly: a product for each of them
};

enum class GemmKind : uint8_t { kF32, kBf16, kFp8, kFp4 };

// Which scales the tensor cores' product takes along.
enum class GemmScales : uint8_t {
  kNone,
  kScalar,   // one F32 for each operand
  kRows,     // an F32 for each row of either operand
  kBlock32,  // MXFP8: E8M0 per 32, swizzled
  kBlock16,  // NVFP4: E4M3 per 16, swizzled
};

struct ProductPlan {
  bool by_dot_products = false;  // few rows per item: a dot product per output, no GEMM
  Preparation a = Preparation::kAsStored, b = Preparation::kAsStored;
  GemmKind kind = GemmKind::kBf16;
  GemmScales scales = GemmScales::kNone;
  bool per_item = false;  // a product for each item of the batch, which has a scale of its own
  // By the algorithm that one item alone has: those for few rows, and those for F32, sum in an
  // order that depends on the number of rows.
  bool as_alone = false;
  bool alpha = false;  // the result is multiplied by the product of global or tensor scales
  // The product goes to F32 first; scales of rows, the bias and rounding follow in a pass over it.
  bool finish = false;
  bool native = false;  // the hardware multiplies in the operands' own format
};

// capability is 90 for sm_90.
ProductPlan plan_product(const MatMulArgs& args, int capability);

}  // namespace halftone::cuda
