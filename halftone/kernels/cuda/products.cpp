// Matrix products: operands made ready, a GEMM or one per item, and what could not be part of it.
#include "halftone/kernels/cuda/backend.h"
#include "halftone/kernels/cuda/dequantize.h"
#include "halftone/kernels/cuda/gemm.h"
#include "halftone/kernels/cuda/product_kernels.h"
#include "halftone/kernels/workspace.h"
#include "halftone/numerics/swizzle.h"

namespace halftone::cuda {
namespace {

const float* global_factor(const ConstView& x) {
  if (x.format == nullptr) return nullptr;
  if (x.format->global_scale) return x.global_scale;
  return x.format->span == ScaleSpan::kTensor ? static_cast<const float*>(x.scales) : nullptr;
}
const float* row_factors(const ConstView& x) {
  const bool rows = x.format != nullptr && x.format->span == ScaleSpan::kRow;
  return rows ? static_cast<const float*>(x.scales) : nullptr;
}

cudaDataType_t stored_type(const ConstView& x) {
  if (x.format != nullptr) {
    switch (x.format->element) {
      case ElementType::kE4M3:
        return CUDA_R_8F_E4M3;
      case ElementType::kE5M2:
        return CUDA_R_8F_E5M2;
      case ElementType::kE2M1:
        return CUDA_R_4F_E2M1;
      default:
        break;
    }
  }
  return x.dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

int64_t bits_of_operand(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_32F:
      return 32;
    case CUDA_R_16BF:
      return 16;
    case CUDA_R_4F_E2M1:
      return 4;
    default:
      return 8;
  }
}

class Product {
 public:
  Product(const MatMulArgs& args, const Stream& stream)
      : args_(args), stream_(stream), plan_(plan_product(args, context().capability())) {}

  int64_t workspace_bytes() const {
    if (plan_.by_dot_products) return 0;
    const int64_t m = args_.y.shape[0], n = args_.y.shape[1];
    int64_t bytes = aligned_bytes(Gemms::kWorkspaceBytes);
    bytes += operand_bytes(args_.a, plan_.a) + operand_bytes(args_.b, plan_.b);
    if (is_block_scaled()) bytes += swizzled_bytes(args_.a) + swizzled_bytes(args_.b);
    if (plan_.alpha) bytes += aligned_bytes(items() * static_cast<int64_t>(sizeof(float)));
    if (plan_.finish) bytes += aligned_bytes(m * n * 4);
    if (plan_.scales == GemmScales::kScalar) bytes += aligned_bytes(items() * kScalarBytes);
    return bytes;
  }

  void run() const {
    if (args_.y.shape.numel() == 0) return;
    if (plan_.by_dot_products) return dot_products(args_, context().stream());
    Workspace workspace(stream_);
    std::byte* gemm_workspace = workspace.bytes(Gemms::kWorkspaceBytes);
    GemmProblem problem = describe();
    GemmPointers at;
    at.a = prepare(args_.a, plan_.a, workspace);
    at.b = prepare(args_.b, plan_.b, workspace);
    at.bias = problem.bias ? args_.bias.data : nullptr;
    at.y = args_.y.data;
    at.addend = problem.add ? args_.addend.data : nullptr;
    if (is_block_scaled()) {
      at.a_scales = swizzled(args_.a, workspace);
      at.b_scales = swizzled(args_.b, workspace);
    } else if (problem.scales == GemmScales::kScalar) {
      at.a_scales = spaced(static_cast<const float*>(args_.a.scales), workspace);
      at.b_scales = args_.b.scales;
    } else if (problem.scales != GemmScales::kNone) {
      at.a_scales = args_.a.scales;
      at.b_scales = args_.b.scales;
    }
    float* alphas = plan_.alpha ? workspace.floats(items()) : nullptr;
    float* sums = plan_.finish ? workspace.floats(args_.y.shape.numel()) : nullptr;
    if (sums != nullptr) at.y = sums;
    for (int64_t i = 0; i < items(); ++i) {
      run_item(problem, at, alphas, i, gemm_workspace);
      for (int part = 1; part < parts(); ++part) {
        GemmProblem more = problem;
        more.add = true;
        more.bias = false;
        GemmPointers from = at;
        from.addend = at.y;
        from.a = static_cast<const std::byte*>(at.a) + part * part_bytes(args_.a);
        from.bias = nullptr;
        run_item(more, from, alphas, i, gemm_workspace);
      }
    }
    if (sums != nullptr) {
      finish_product({sums, left_factors(args_.a, plan_.a), left_factors(args_.b, plan_.b),
                      args_.bias, args_.addend, args_.y, args_.gelu},
                     context().stream());
    }
  }

 private:
  Context& context() const { return context_of(stream_); }
  // Scales of rows that are left for the result.
  const float* left_factors(const ConstView& x, Preparation how) const {
    const bool done = plan_.scales != GemmScales::kNone || how == Preparation::kValues;
    return done ? nullptr : row_factors(x);
  }
  bool is_block_scaled() const {
    return plan_.scales == GemmScales::kBlock16 || plan_.scales == GemmScales::kBlock32;
  }
  // Products whose sum is the product.
  int parts() const { return plan_.a == Preparation::kSplit ? 3 : 1; }
  static int64_t part_bytes(const ConstView& x) { return aligned_bytes(x.shape.numel() * 2); }
  int64_t items() const { return plan_.per_item ? args_.y.shape[0] / args_.rows_per_item : 1; }

  GemmProblem describe() const {
    GemmProblem p;
    const auto type = [&](const ConstView& x, Preparation how) {
      const bool narrow =
          how == Preparation::kDecode || how == Preparation::kRound || how == Preparation::kSplit;
      if (narrow) return CUDA_R_16BF;
      return how == Preparation::kAsStored ? stored_type(x) : CUDA_R_32F;
    };
    p.a_type = type(args_.a, plan_.a);
    p.b_type = type(args_.b, plan_.b);
    p.y_type = plan_.finish || args_.y.dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    p.m = args_.y.shape[0] / items();
    if (plan_.as_alone) p.item_rows = args_.rows_per_item;
    p.n = args_.y.shape[1];
    p.k = args_.a.shape[args_.how.transpose_a ? 0 : 1];
    p.transpose_a = args_.how.transpose_a;
    p.transpose_b = args_.how.transpose_b;
    p.scales = plan_.scales;
    p.bias = args_.bias.data != nullptr && !plan_.finish;
    p.gelu = args_.gelu && !plan_.finish;
    p.add = args_.addend.data != nullptr && !plan_.finish;
    p.alpha = plan_.alpha;
    // Sums of FP8 products on Hopper may be kept in fewer bits: faster, and what that loses is
    // small beside the rounding of the operands, E5M2's most of all.
    p.fast_accumulation = plan_.kind == GemmKind::kFp8 && !is_block_scaled();
    return p;
  }

  void run_item(const GemmProblem& problem, GemmPointers at, float* alphas, int64_t item,
                std::byte* workspace) const {
    const auto advance = [](const void* data, int64_t bytes) {
      return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
    };
    if (item > 0) {
      const int64_t rows = item * problem.m;
      at.a = advance(at.a, rows * problem.k * bits_of_operand(problem.a_type) / 8);
      const int64_t before = rows * problem.n * (problem.y_type == CUDA_R_32F ? 4 : 2);
      at.y = static_cast<std::byte*>(at.y) + before;
      at.addend = advance(at.addend, before);
      if (problem.scales == GemmScales::kScalar) {
        at.a_scales = advance(at.a_scales, item * kScalarBytes);
      }
      if (is_block_scaled()) {
        // Items start at a tile of 128 rows, or their scales are not one piece.
        at.a_scales =
            advance(at.a_scales, item * swizzled_scale_bytes(problem.m, scale_columns(args_.a)));
      }
    }
    if (alphas != nullptr) {
      const float* own = global_factor(args_.a);
      multiply_scalars(own == nullptr ? nullptr : own + scale_of(item), global_factor(args_.b),
                       alphas + item, context().stream());
      at.alpha = alphas + item;
    }
    context().part<Gemms>().run(problem, at, workspace);
  }

  static int64_t operand_bytes(const ConstView& x, Preparation how) {
    const int64_t count = x.shape.numel();
    if (how == Preparation::kAsStored) return 0;
    if (how == Preparation::kDecode || how == Preparation::kRound) return aligned_bytes(count * 2);
    if (how == Preparation::kSplit) return 3 * part_bytes(x);
    const bool decodes_first = how == Preparation::kToFloat && x.format != nullptr;
    return aligned_bytes(count * 4) + (decodes_first ? aligned_bytes(count * 2) : 0);
  }

  const void* prepare(const ConstView& x, Preparation how, Workspace& workspace) const {
    if (how == Preparation::kAsStored) return x.data;
    const int64_t count = x.shape.numel();
    const auto decoded = [&] {
      auto* y = reinterpret_cast<bf16*>(workspace.bytes(count * 2));
      decode_blocks(x, x.shape[0], x.shape[1], y, stream_);
      return y;
    };
    if (how == Preparation::kDecode) return decoded();
    if (how == Preparation::kSplit) {
      auto* y = reinterpret_cast<bf16*>(workspace.bytes(3 * part_bytes(x)));
      split_floats(static_cast<const float*>(x.data), count, y, part_bytes(x) / 2,
                   context().stream());
      return y;
    }
    if (how == Preparation::kRound) {
      auto* y = reinterpret_cast<bf16*>(workspace.bytes(count * 2));
      round_to_bf16(x, y, context().stream());
      return y;
    }
    float* wide = workspace.floats(count);
    if (how == Preparation::kValues) {
      const int64_t rows = x.shape[0], cols = x.shape[1];
      cuda_kernels().dequantize.launch({*x.format,
                                        static_cast<const uint8_t*>(x.data),
                                        x.scales,
                                        x.global_scale,
                                        false,
                                        {wide, DType::kF32, rows, cols, cols}},
                                       stream_);
    } else if (x.format == nullptr) {
      widen(x, wide, context().stream());
    } else {
      widen(decoded(), count, wide, context().stream());
    }
    return wide;
  }

  // cuBLASLt wants scales aligned; those of items lie side by side.
  static constexpr int64_t kScalarBytes = 256;
  const float* spaced(const float* scales, Workspace& workspace) const {
    auto* to = workspace.bytes(items() * kScalarBytes);
    for (int64_t i = 0; i < items(); ++i) {
      multiply_scalars(scales + scale_of(i), nullptr,
                       reinterpret_cast<float*>(to + i * kScalarBytes), context().stream());
    }
    return reinterpret_cast<float*>(to);
  }

  // A static scale is one for all items.
  int64_t scale_of(int64_t item) const { return args_.a.format->static_scale ? 0 : item; }

  static int64_t scale_columns(const ConstView& x) { return x.format->scales_per_row(x.shape[1]); }
  int64_t parts_of(const ConstView& x) const { return &x == &args_.a ? items() : 1; }
  int64_t swizzled_bytes(const ConstView& x) const {
    if (x.format->swizzled) return 0;
    const int64_t parts = parts_of(x);
    return aligned_bytes(parts * swizzled_scale_bytes(x.shape[0] / parts, scale_columns(x)));
  }
  const void* swizzled(const ConstView& x, Workspace& workspace) const {
    if (x.format->swizzled) {  // as the quantizer wrote them, for all items together
      HT_ASSERT(parts_of(x) == 1);
      return x.scales;
    }
    auto* to = reinterpret_cast<uint8_t*>(workspace.bytes(swizzled_bytes(x)));
    const int64_t parts = parts_of(x), rows = x.shape[0] / parts, columns = scale_columns(x);
    for (int64_t i = 0; i < parts; ++i) {
      swizzle_scales(static_cast<const uint8_t*>(x.scales) + i * rows * columns, rows, columns,
                     to + i * swizzled_scale_bytes(rows, columns), context().stream());
    }
    return to;
  }

  const MatMulArgs& args_;
  const Stream& stream_;
  ProductPlan plan_;
};

bool takes(const ConstView& x) {
  return x.format != nullptr || x.dtype == DType::kF32 || x.dtype == DType::kBF16 ||
         x.dtype == DType::kF16;
}

}  // namespace

void fill_products(Kernels& table) {
  table.matmul = {
      [](const MatMulArgs& a) {
        return takes(a.a) && takes(a.b) && (a.y.dtype == DType::kF32 || a.y.dtype == DType::kBF16);
      },
      [](const MatMulArgs& a, Stream s) { Product(a, s).run(); },
      [](const MatMulArgs& a, const Stream& s) { return Product(a, s).workspace_bytes(); }};
  table.wide_products = true;
  table.products_apply_gelu = true;
  table.products_add = true;
}

}  // namespace halftone::cuda
