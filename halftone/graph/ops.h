// Builders of operations: each checks its shapes and adds one node. The result has the dtype of
// the first input unless stated. Gradients are in catalogue.h.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone {

// ---- elementwise, with broadcasting of dimensions of size 1 and of missing leading ones ---------
Value add(Value a, Value b);
Value mul(Value a, Value b);
Value affine(Value x, float scale, float shift);  // x * scale + shift
Value apply(Function function, Value x);
Value silu_mul(Value gate, Value up);  // silu(gate) * up
Value cast(Value x, DType dtype);

inline Value operator+(Value a, Value b) { return add(a, b); }
inline Value operator*(Value a, Value b) { return mul(a, b); }
inline Value operator+(float a, Value x) { return affine(x, 1, a); }
inline Value operator*(float a, Value x) { return affine(x, a, 0); }
inline Value operator-(Value x) { return affine(x, -1, 0); }
inline Value operator-(Value a, Value b) { return a + (-b); }
inline Value tanh(Value x) { return apply(Function::kTanh, x); }
inline Value gelu(Value x) { return apply(Function::kGelu, x); }
inline Value quick_gelu(Value x) { return apply(Function::kQuickGelu, x); }
inline Value erf_gelu(Value x) { return apply(Function::kErfGelu, x); }
inline Value silu(Value x) { return apply(Function::kSilu, x); }
inline Value sigmoid(Value x) { return apply(Function::kSigmoid, x); }

// ---- shapes -------------------------------------------------------------------------------------
Value sum_to(Value x, const Shape& shape);  // the reverse of broadcasting
Value broadcast_to(Value x, const Shape& shape);
Value reshape(Value x, const Shape& shape);
Value permute(Value x, std::vector<int> order);
Value concat(std::span<const Value> parts, int axis);
inline Value concat(std::initializer_list<Value> parts, int axis) {
  return concat(std::span(parts.begin(), parts.size()), axis);
}
Value slice(Value x, int axis, int64_t begin, int64_t end);
Value pad(Value x, int axis, int64_t before, int64_t after);  // with zeros
std::vector<Value> split(Value x, int parts, int axis);

// ---- products -----------------------------------------------------------------------------------
// x in this format along its last dimension. Scales that span rows never span items of the batch,
// the first dimension.
// static_scale is given where the format asks for one.
Value quantize(Value x, const Format& format, float static_scale = 0);
// A matrix as one item: a scale for all of it where the format has one.
Value quantize_weight(Value weight, const Format& format);
// x [..., K], weight [N, K], bias [N] -> [..., N]; x and weight may be quantized.
Value linear(Value x, Value weight, std::optional<Value> bias = std::nullopt);
// Of matrices; in a's dtype, if no other is asked for.
Value matmul(Value a, Value b, bool transpose_a, bool transpose_b,
             std::optional<DType> result = {});
// x [B, C, H, W], or [B, H, W, C] where the attributes say so; weight [O, C, kh, kw], bias [O]
Value conv2d(Value x, Value weight, std::optional<Value> bias, const ConvAttributes& attributes);

// ---- norms over the last dimension; GroupNorm over channels of [B, C, H, W] ---------------------
Value rms_norm(Value x, Value weight, float eps);
Value layer_norm(Value x, float eps);  // without weight and bias
Value group_norm(Value x, Value weight, Value bias, int groups, float eps,
                 bool channels_last = false);  // then of [B, H, W, C]

// ---- attention and tokens -----------------------------------------------------------------------
// x [B, T, H, D]; cosine and sine [B, T, D/2]
Value rope(Value x, Value cosine, Value sine, const RopeAttributes& attributes);
// q [B, T, H, D], k and v [B, S, G, D] with H a multiple of G -> [B, T, H, D]. With lengths [B],
// row b sees keys 0 .. lengths[b] - 1. A bias [H, T, S], or [B, H, T, S], is added to the scaled
// scores.
Value attention(Value q, Value k, Value v, std::optional<Value> lengths,
                AttentionAttributes attributes, std::optional<Value> bias = std::nullopt);
Value embedding(Value ids, Value table);  // ids I32 [B, T], table [V, C] -> [B, T, C]
// Rows at or beyond lengths[b] of x [B, T, C] become token [C].
Value pad_rows(Value x, Value token, Value lengths);
// keys I32 [B, 4] -> F32 [B, ...]: noise whose row b is the sequence of a key, its seed and its
// stream as two words each, the lower ones first (philox_key).
Value gaussian(Value keys, const Shape& shape);
// x [B, ...] with a share of its values zero, and the others larger by 1 / (1 - share). Keys as
// gaussian's.
Value dropout(Value x, Value keys, const DropoutAttributes& how);

// ---- pictures [B, C, H, W], or [B, H, W, C] -----------------------------------------------------
Value upsample2x(Value x, bool channels_last = false);  // nearest

// mean((a - b)^2), shape [1]
Value mean_squared_error(Value a, Value b);

}  // namespace halftone
