// One row per operation: its name and its gradient rule. A rule builds graph nodes; an entry that
// is empty needs no gradient (lengths, ids, rotation tables).
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/graph/graph.h"

namespace halftone {

// What a gradient rule sees of the node it differentiates.
struct GradientContext {
  const Attributes& attributes;
  std::span<const Value> inputs;
  std::span<const Value> outputs;
  Value dy;  // gradient of the first output
};
using Gradients = std::vector<std::optional<Value>>;  // one per input
using GradientRule = Gradients (*)(const GradientContext&);

struct OpInfo {
  std::string_view name;
  GradientRule gradient;  // null: not differentiated further (gradients themselves)
};

const OpInfo& op_info(Op op);

// Rules, defined beside their builders.
Gradients add_gradient(const GradientContext& c);
Gradients mul_gradient(const GradientContext& c);
Gradients affine_gradient(const GradientContext& c);
Gradients unary_gradient(const GradientContext& c);
Gradients silu_mul_gradient(const GradientContext& c);
Gradients cast_gradient(const GradientContext& c);
Gradients sum_to_gradient(const GradientContext& c);
Gradients broadcast_gradient(const GradientContext& c);
Gradients reshape_gradient(const GradientContext& c);
Gradients permute_gradient(const GradientContext& c);
Gradients concat_gradient(const GradientContext& c);
Gradients pad_gradient(const GradientContext& c);
Gradients quantize_gradient(const GradientContext& c);
Gradients linear_gradient(const GradientContext& c);
Gradients matmul_gradient(const GradientContext& c);
Gradients conv2d_gradient(const GradientContext& c);
Gradients rms_norm_gradient(const GradientContext& c);
Gradients layer_norm_gradient(const GradientContext& c);
Gradients group_norm_gradient(const GradientContext& c);
Gradients rope_gradient(const GradientContext& c);
Gradients attention_gradient(const GradientContext& c);
Gradients embedding_gradient(const GradientContext& c);
Gradients pad_rows_gradient(const GradientContext& c);
Gradients dropout_gradient(const GradientContext& c);
Gradients upsample2x_gradient(const GradientContext& c);

// A shape rule that is broken is an Error whose message starts with the op's name.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) {
    throw Error(ErrorCode::kInvalidInput, "", message, std::forward<Args>(args)...);
  }
}

}  // namespace halftone
