// The operations of a graph, and what each of them needs to know besides its inputs.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "halftone/kernels/op_args.h"

namespace halftone {

enum class Op : uint8_t {
  // elementwise and shapes
  kAdd,
  kMul,
  kAffine,
  kUnary,
  kSiluMul,
  kSumTo,
  kBroadcast,
  kReshape,
  kPermute,
  kConcat,
  kSlice,
  kPad,
  kCast,
  // products
  kLinear,
  kMatMul,
  kConv2d,
  kConv2dInputGrad,
  kConv2dWeightGrad,
  // norms
  kRmsNorm,
  kRmsNormGrad,
  kLayerNorm,
  kLayerNormGrad,
  kGroupNorm,
  kGroupNormGrad,
  // attention and tokens
  kRope,
  kAttention,
  kAttentionGrad,
  kEmbedding,
  kEmbeddingGrad,
  kPadRows,
  kPadRowsGrad,
  // pictures
  kUpsample2x,
  kUpsample2xGrad,
};
inline constexpr int kOpCount = static_cast<int>(Op::kUpsample2xGrad) + 1;

struct PermuteAttributes {
  std::vector<int> order;  // output dimension i is input dimension order[i]
};
struct AxisAttributes {  // concat; slice [begin, end); pad by begin before and end after
  int axis = 0;
  int64_t begin = 0, end = 0;
};
using Attributes = std::variant<std::monostate, AffineAttributes, UnaryAttributes,
                                PermuteAttributes, AxisAttributes, MatMulAttributes, NormAttributes,
                                RopeAttributes, AttentionAttributes, ConvAttributes>;

}  // namespace halftone
