#include "halftone/graph/catalogue.h"

namespace halftone {
namespace {

// In the order of the enum.
constexpr std::array<OpInfo, kOpCount> kCatalogue = {{
    {"add", add_gradient},
    {"mul", mul_gradient},
    {"affine", affine_gradient},
    {"unary", unary_gradient},
    {"silu_mul", silu_mul_gradient},
    {"sum_to", sum_to_gradient},
    {"broadcast", broadcast_gradient},
    {"reshape", reshape_gradient},
    {"permute", permute_gradient},
    {"concat", concat_gradient},
    {"slice", nullptr},  // of all slices of a value together: passes/autodiff.cpp
    {"pad", pad_gradient},
    {"cast", cast_gradient},
    {"quantize", quantize_gradient},
    {"linear", linear_gradient},
    {"linear_input_grad", nullptr},
    {"matmul", matmul_gradient},
    {"conv2d", conv2d_gradient},
    {"conv2d_input_grad", nullptr},
    {"conv2d_weight_grad", nullptr},
    {"rms_norm", rms_norm_gradient},
    {"rms_norm_grad", nullptr},
    {"layer_norm", layer_norm_gradient},
    {"layer_norm_grad", nullptr},
    {"group_norm", group_norm_gradient},
    {"group_norm_grad", nullptr},
    {"rope", rope_gradient},
    {"attention", attention_gradient},
    {"attention_grad", nullptr},
    {"embedding", embedding_gradient},
    {"embedding_grad", nullptr},
    {"pad_rows", pad_rows_gradient},
    {"pad_rows_grad", nullptr},
    {"gaussian", nullptr},
    {"dropout", dropout_gradient},
    {"upsample2x", upsample2x_gradient},
    {"upsample2x_grad", nullptr},
    {"fused_rows", nullptr},
}};

}  // namespace

const OpInfo& op_info(Op op) { return kCatalogue[static_cast<size_t>(op)]; }

}  // namespace halftone
