// The operations of a graph, and what each of them needs to know besides its inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "halftone/kernels/fused_args.h"
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
  kQuantize,
  kLinear,
  kLinearInputGrad,
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
  kGaussian,
  kDropout,
  // pictures
  kUpsample2x,
  kUpsample2xGrad,
  // made by the fuse pass
  kFusedRows,
};
inline constexpr int kOpCount = static_cast<int>(Op::kFusedRows) + 1;

// What a linear quantizes its input to before the product. Set by the quantize pass; the lower pass
// turns it into a node of its own, which linears on the same input share.
struct LinearAttributes {
  std::optional<Format> activations;
  float static_scale = 0;              // where activations->static_scale
  bool gelu = false;                   // of the result; set by the pass that folds it in
  std::optional<Format> gradients;     // what dY is rounded to for the input's gradient
  bool round_weight_gradient = false;  // dY to the same, and X to FP8, for the weight's
  bool adds = false;  // the last operand is added; set by the pass that folds sums into products
};
struct LinearInputGradAttributes {
  std::optional<Format> gradients;
  bool adds = false;  // as a linear's
};
struct QuantizeAttributes {
  Format format;
  float static_scale = 0;  // where format.static_scale
};
struct PermuteAttributes {
  std::vector<int> order;  // output dimension i is input dimension order[i]
};
struct AxisAttributes {  // concat; slice [begin, end); pad by begin before and end after
  int axis = 0;
  int64_t begin = 0, end = 0;
};
using Attributes =
    std::variant<std::monostate, AffineAttributes, UnaryAttributes, PermuteAttributes,
                 AxisAttributes, MatMulAttributes, LinearAttributes, LinearInputGradAttributes,
                 QuantizeAttributes, DropoutAttributes, NormAttributes, RopeAttributes,
                 AttentionAttributes, ConvAttributes, UpsampleAttributes, FusedRowsAttributes>;

}  // namespace halftone
