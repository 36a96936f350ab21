#include "halftone/kernels/cuda/product_plan.h"

namespace halftone::cuda {
namespace {

bool is_fp8(const ConstView& x) {
  return x.format != nullptr &&
         (x.format->element == ElementType::kE4M3 || x.format->element == ElementType::kE5M2);
}
bool spans(const ConstView& x, ScaleSpan span) {
  return x.format != nullptr && x.format->span == span;
}
// A scale that stands before the whole sum: of a tensor, or NVFP4's global one.
bool has_global_factor(const ConstView& x) {
  return x.format != nullptr && (x.format->span == ScaleSpan::kTensor || x.format->global_scale);
}

// Alignment and operand types that FP8 tensor cores take.
bool takes_fp8(const MatMulArgs& args, int capability) {
  const int64_t n = args.y.shape[1], k = args.a.shape[1];
  const bool both_e5m2 = is_fp8(args.a) && is_fp8(args.b) &&
                         args.a.format->element == ElementType::kE5M2 &&
                         args.b.format->element == ElementType::kE5M2;
  return capability >= 89 && is_fp8(args.a) && is_fp8(args.b) && !both_e5m2 && k % 16 == 0 &&
         n % 16 == 0 && !args.how.transpose_a && args.how.transpose_b;
}

bool takes_blocks(const MatMulArgs& args, int capability) {
  const int64_t n = args.y.shape[1], k = args.a.shape[1];
  return capability >= 100 && spans(args.a, ScaleSpan::kBlock) &&
         spans(args.b, ScaleSpan::kBlock) && args.a.format->scale == args.b.format->scale &&
         k % 32 == 0 && n % 16 == 0 && !args.how.transpose_a && args.how.transpose_b;
}

bool is_wide(const ConstView& x) { return x.format == nullptr && x.dtype != DType::kBF16; }

// The bias can be added by the product only in the result's own dtype.
bool bias_needs_finish(const MatMulArgs& args) {
  return args.bias.data != nullptr && args.bias.dtype != args.y.dtype;
}

// F32 rows against weights that are BF16 or decoded to it exactly. By the rows of one item, so that
// its bits do not depend on the batch; few rows are not worth it.
bool is_split(const MatMulArgs& args, bool b_along) {
  const int64_t rows = args.rows_per_item > 0 ? args.rows_per_item : args.y.shape[0];
  const bool exact = args.b.format != nullptr ? !b_along : args.b.dtype == DType::kBF16;
  const int64_t n = args.y.shape[1], k = args.a.shape[1];
  constexpr int64_t kFewestRows = 64;
  return exact && args.a.format == nullptr && args.a.dtype == DType::kF32 &&
         !args.how.transpose_a && rows >= kFewestRows && n % 8 == 0 && k % 8 == 0;
}

}  // namespace

ProductPlan plan_product(const MatMulArgs& args, int capability) {
  ProductPlan plan;
  const bool plain = args.a.format == nullptr && args.b.format == nullptr;
  if (plain && args.rows_per_item == 1 && !args.how.transpose_a && args.how.transpose_b) {
    plan.by_dot_products = true;
    return plan;
  }
  plan.finish = bias_needs_finish(args);
  const bool several_items = args.rows_per_item > 0 && args.rows_per_item < args.y.shape[0];
  plan.per_item = has_global_factor(args.a) && several_items && !args.a.format->static_scale;

  if (takes_blocks(args, capability)) {
    plan.native = true;
    const bool mx = args.a.format->scale == ScaleType::kE8M0;
    plan.kind = mx ? GemmKind::kFp8 : GemmKind::kFp4;
    plan.scales = mx ? GemmScales::kBlock32 : GemmScales::kBlock16;
    plan.alpha = !mx;
    return plan;
  }
  const bool rows = spans(args.a, ScaleSpan::kRow) && spans(args.b, ScaleSpan::kRow);
  const bool tensors = spans(args.a, ScaleSpan::kTensor) && spans(args.b, ScaleSpan::kTensor);
  const bool mixed = (spans(args.a, ScaleSpan::kRow) || spans(args.a, ScaleSpan::kTensor)) &&
                     (spans(args.b, ScaleSpan::kRow) || spans(args.b, ScaleSpan::kTensor));
  if (takes_fp8(args, capability) && mixed) {
    plan.native = true;
    plan.kind = GemmKind::kFp8;
    // cuBLASLt adds no F32 bias to sums of FP8 products.
    plan.finish = plan.finish || (args.bias.data != nullptr && args.y.dtype == DType::kF32);
    if (tensors) {
      plan.scales = GemmScales::kScalar;
    } else if (rows && capability == 90) {
      plan.scales = GemmScales::kRows;
    } else {
      // cuBLASLt scales by row on Hopper alone; elsewhere the scales are applied to the sums.
      plan.alpha = has_global_factor(args.a) || has_global_factor(args.b);
      plan.finish = true;
    }
    return plan;
  }

  // Exact emulation, and what is not quantized.
  const auto decode_or_keep = [](const ConstView& x) {
    return x.format != nullptr ? Preparation::kDecode : Preparation::kAsStored;
  };
  plan.a = decode_or_keep(args.a);
  plan.b = decode_or_keep(args.b);
  plan.alpha = has_global_factor(args.a) || has_global_factor(args.b);
  const bool row_scales = spans(args.a, ScaleSpan::kRow) || spans(args.b, ScaleSpan::kRow);
  plan.finish = plan.finish || row_scales;
  plan.native = plain && (capability >= 80 || is_wide(args.a) || is_wide(args.b));
  const bool a_along = args.how.transpose_a && spans(args.a, ScaleSpan::kRow);
  const bool b_along = !args.how.transpose_b && spans(args.b, ScaleSpan::kRow);
  constexpr int64_t kFewRows = 512;
  plan.as_alone = several_items && args.rows_per_item <= kFewRows;
  if (capability >= 80 && !is_wide(args.a) && is_wide(args.b) && !a_along) {
    plan.b = Preparation::kRound;
    return plan;
  }
  if (capability >= 80 && is_split(args, b_along)) {
    plan.a = Preparation::kSplit;
    plan.finish = plan.finish || args.y.dtype != DType::kF32 || args.gelu;
    return plan;
  }
  if (is_wide(args.a) || is_wide(args.b) || capability < 80 || a_along || b_along) {
    plan.as_alone = several_items;
    plan.kind = GemmKind::kF32;
    if (args.a.format != nullptr || args.a.dtype != DType::kF32) plan.a = Preparation::kToFloat;
    if (args.b.format != nullptr || args.b.dtype != DType::kF32) plan.b = Preparation::kToFloat;
    if (a_along) plan.a = Preparation::kValues;
    if (b_along) plan.b = Preparation::kValues;
    plan.finish = plan.finish || args.y.dtype != DType::kF32;
  }
  return plan;
}

}  // namespace halftone::cuda
