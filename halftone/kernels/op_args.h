// The contracts of the graph's kernels: views of contiguous row-major arrays, and what an
// operation needs to know besides them.
#pragma once

#include <array>
#include <cstdint>

#include "halftone/base/random.h"
#include "halftone/numerics/format.h"
#include "halftone/tensor/dtype.h"
#include "halftone/tensor/shape.h"

namespace halftone {

// With a format, data holds codes along the last dimension and dtype is what they stand for.
struct ConstView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape{0};
  const Format* format = nullptr;
  const void* scales = nullptr;
  const float* global_scale = nullptr;
  int64_t rows_per_scale = 0;  // rows that share a tensor's scale or a global scale; 0 is all
  // Elements from one token of [B, T, ...] to the next where others lie between them; 0 where none
  // do. Only attention takes such views, of tables that say so.
  int64_t token_stride = 0;
  // A convolution's weight [O, C, kh, kw] that lies as [O, kh, kw, C]. Only convolutions take such.
  bool channels_last = false;
};
struct View {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape{0};
  const Format* format = nullptr;
  void* scales = nullptr;
  float* global_scale = nullptr;
  int64_t rows_per_scale = 0;
};

// ---- what operations need to know ---------------------------------------------------------------

enum class BinaryFunction : uint8_t { kAdd, kMul };
// GELU (numerics/gelu.h): kGelu is the approximation by tanh, as diffusion transformers have it.
enum class Function : uint8_t {
  kTanh,
  kSigmoid,
  kSilu,
  kGelu,
  kQuickGelu,
  kErfGelu,
  kErfGeluSlope,  // the derivative of the former
  kSin,
  kCos,
};
enum class RopeLayout : uint8_t {
  kInterleaved,  // pairs (0, 1), (2, 3), ...
  kHalves,       // pairs (0, D/2), (1, D/2 + 1), ...
};

struct AffineAttributes {  // x * scale + shift
  float scale = 1, shift = 0;
};
struct UnaryAttributes {
  Function function = Function::kTanh;
};
struct MatMulAttributes {
  bool transpose_a = false, transpose_b = false;
  bool adds = false;  // the last operand is added to the product
};
struct NormAttributes {
  float eps = 1e-5f;
  int groups = 0;              // GroupNorm
  bool channels_last = false;  // GroupNorm of [B, H, W, C]
  bool silu = false;           // GroupNorm, of the result once it is rounded
};
struct RopeAttributes {
  RopeLayout layout = RopeLayout::kInterleaved;
  bool inverse = false;  // rotates back: the gradient
};
struct AttentionAttributes {
  float scale = 1;
  bool causal = false;
  bool statistics = false;  // handed from attention to its gradient
  bool biased = false;      // what is added to scores is the last operand

  bool operator==(const AttentionAttributes&) const = default;
};
// Which values are zero is a function of their row's key, the site and their place in the row.
struct DropoutAttributes {
  float share = 0;    // of values that become zero, below 1; the others grow accordingly
  uint32_t site = 0;  // one for each place where the same keys are used
};
struct ConvAttributes {
  int stride = 1;
  std::array<int, 4> pad{};    // top, left, bottom, right
  bool channels_last = false;  // of [B, H, W, C]
  // Operands behind the bias, set by the pass that folds sums into products: what is added to every
  // pixel of an item, and what is added to the whole.
  bool shifts = false, adds = false;
};
struct UpsampleAttributes {
  bool channels_last = false;
};

// ---- arguments; an empty view (null data) is an input that is not there -------------------------

struct BinaryArgs {  // y = a op b, broadcasting
  BinaryFunction function;
  ConstView a, b;
  View y;
};
struct AffineArgs {
  AffineAttributes how;
  ConstView x;
  View y;
};
struct UnaryArgs {
  UnaryAttributes how;
  ConstView x;
  View y;
};
struct SiluMulArgs {
  ConstView gate, up;
  View y;
};
struct SumToArgs {  // y = x summed over the dimensions in which y's shape is smaller
  ConstView x;
  View y;
};
// y[i] = x[i] for every index i below dims, each side with strides of its own (in elements), and
// converting between dtypes: broadcast, permute, slice, concat, pad and cast are all this.
struct CopyArgs {
  int rank = 0;
  std::array<int64_t, Shape::kMaxRank> dims{}, x_strides{}, y_strides{};
  const void* x = nullptr;
  DType x_dtype = DType::kF32;
  void* y = nullptr;
  DType y_dtype = DType::kF32;
};
struct FillArgs {
  float value = 0;
  View y;
};
// y [M, N] = op(a) op(b) + bias [N] + addend [M, N]. Operands may be quantized along their rows:
// products of what codes and block scales stand for are summed exactly as such, and the scales of
// rows, tensors and global ones are applied to the sum, as tensor cores do (see
// kernels/cpu/scalar/products.cpp).
struct MatMulArgs {
  MatMulAttributes how;
  ConstView a, b, bias;
  View y;
  // Rows of a that belong to one item of a batch; 0 where there is no batch. A kernel may choose
  // its method by this, but not by the number of rows: a row's bits must not depend on its batch.
  int64_t rows_per_item = 0;
  bool gelu = false;      // of the result, before it is rounded
  ConstView addend = {};  // as y, and perhaps y itself: what is there is added to
};
// dx [M, K] = dy [M, N] weight [N, K], of a quantized weight: what a linear hands back to its
// input. With a format (E5M2 by row), dy is rounded to it before the product, so that both operands
// have 8 bits. Scales of the weight that lie along the sum do not stay with its codes then: those
// of rows are multiplied into dy before it is rounded; blocks are rounded again, to E4M3 with a
// scale for each of K.
struct LinearInputGradArgs {
  const Format* gradients = nullptr;
  ConstView dy, weight;
  View dx;
  ConstView addend = {};  // as MatMulArgs has it, of dx
};
// y [B, O, H', W'] = x [B, C, H, W] * weight [O, C, kh, kw] + bias [O] + shift [B, O] + addend,
// which is as y. Pictures, not the weight, are [B, H, W, C] where `how` says so.
struct ConvArgs {
  ConvAttributes how;
  ConstView x, weight, bias;
  View y;
  ConstView shift = {}, addend = {};
};
struct ConvInputGradArgs {
  ConvAttributes how;
  ConstView dy, weight;
  View dx;
};
struct ConvWeightGradArgs {
  ConvAttributes how;
  ConstView dy, x;
  View dweight;
};
struct NormArgs {  // RMS (weight), layer (none) or group norm (weight and bias)
  NormAttributes how;
  ConstView x, weight, bias;
  View y;
};
struct NormGradArgs {
  NormAttributes how;
  ConstView dy, x, weight;
  View dx, dweight, dbias;
};
struct RopeArgs {
  RopeAttributes how;
  ConstView x, cosine, sine;
  View y;
};
struct AttentionArgs {
  AttentionAttributes how;
  ConstView q, k, v, lengths;
  View y;
  View statistics =
      {};               // F32 [B, H, S]: the logarithm of each softmax's sum; of tables that say so
  ConstView bias = {};  // of scores once they are scaled: [H, T, S], or [B, H, T, S]
};
struct AttentionGradArgs {
  AttentionAttributes how;
  ConstView dy, q, k, v, lengths;
  View dq, dk, dv;
  ConstView y = {}, statistics = {};  // of the forward pass, where they were handed over
  ConstView bias = {};
  View dbias = {};  // as bias: summed over the items that share it
};
// Elements from one item's bias to the next: none where all share it.
inline int64_t bias_stride(const Shape& bias) {
  return bias.rank() == 4 ? bias[1] * bias[2] * bias[3] : 0;
}
// One step of AdamW on all of F32 [N], as PyTorch has it.
struct AdamWArgs {
  float learning_rate = 1e-4f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  int64_t step = 1;          // from 1 on
  float gradient_scale = 1;  // of clipping, and of a mean over several gradients
  ConstView gradients;
  // first and second: moments of gradients, F32; or E4M3 (of the second its root, rounded up) with
  // an F32 scale for every kMomentBlock values.
  View parameters, first, second;  // parameters: F32, or BF16
  PhiloxKey rounding = {};         // of BF16 ones, by chance: another for every step
  View first_scales = {}, second_scales = {};
  // A running mean of the parameters, where there is one: it comes nearer by this share.
  View average = {};
  float average_rate = 0;
};
struct GaussianArgs {
  ConstView keys;  // I32 [rows, 4]
  View y;          // F32 [rows, ...]
};
struct DropoutArgs {
  DropoutAttributes how;
  ConstView x;     // [rows, ...]
  ConstView keys;  // I32 [rows, 4]
  View y;          // as x
};
struct EmbeddingArgs {
  ConstView ids, table;
  View y;
};
struct EmbeddingGradArgs {
  ConstView dy, ids;
  View dtable;
};
struct PadRowsArgs {
  ConstView x, token, lengths;
  View y;
};
struct PadRowsGradArgs {
  ConstView dy, lengths;
  View dx, dtoken;
};
struct Upsample2xArgs {  // forward: y is twice as large; gradient: x is twice as large
  ConstView x;
  View y;
  UpsampleAttributes how = {};
};

}  // namespace halftone
