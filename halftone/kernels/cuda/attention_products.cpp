#include "halftone/kernels/cuda/attention_products.h"

#include <algorithm>

#include "halftone/kernels/cuda/gemm.h"
#include "halftone/kernels/workspace.h"

namespace halftone::cuda {
namespace {

// Queries of a tile: so many that its scores take about this much.
constexpr int64_t kTileScores = int64_t{1} << 25;
int64_t tile_rows(const AttentionArgs& a) {
  const int64_t keys = std::max<int64_t>(a.k.shape[1], 1);
  return std::clamp<int64_t>(kTileScores / keys / 128 * 128, 128,
                             std::max<int64_t>(a.q.shape[1], 128));
}

const std::byte* at(const ConstView& x, int64_t elements) {
  return static_cast<const std::byte*>(x.data) + elements * bits_of(x.dtype) / 8;
}
// Elements from one token to the next.
int64_t stride_of(const ConstView& x) {
  return x.token_stride > 0 ? x.token_stride : x.shape[2] * x.shape[3];
}

}  // namespace

int64_t product_attention_workspace(const AttentionArgs& a) {
  const int64_t scores = tile_rows(a) * a.k.shape[1];
  return aligned_bytes(Gemms::kWorkspaceBytes) + aligned_bytes(scores * 4) +
         aligned_bytes(scores * bits_of(a.q.dtype) / 8);
}

void product_attention(const AttentionArgs& a, const Stream& stream) {
  HT_ASSERT(a.q.dtype == a.k.dtype && a.q.dtype == a.v.dtype && a.q.dtype == a.y.dtype);
  const int64_t items = a.q.shape[0], queries = a.q.shape[1], heads = a.q.shape[2],
                dim = a.q.shape[3], keys = a.k.shape[1], groups = a.k.shape[2];
  Context& context = context_of(stream);
  Workspace workspace(stream);
  std::byte* gemm_workspace = workspace.bytes(Gemms::kWorkspaceBytes);
  const int64_t rows = tile_rows(a);
  float* scores = workspace.floats(rows * keys);
  std::byte* p = workspace.bytes(rows * keys * bits_of(a.q.dtype) / 8);
  const cudaDataType_t type = a.q.dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
  for (int64_t b = 0; b < items; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / (heads / groups);
      const auto* k = at(a.k, b * keys * stride_of(a.k) + g * dim);
      const auto* v = at(a.v, b * keys * stride_of(a.v) + g * dim);
      for (int64_t first = 0; first < queries; first += rows) {
        const int64_t m = std::min(rows, queries - first);
        GemmProblem products{type, type, CUDA_R_32F, m, keys, dim};
        products.a_stride = stride_of(a.q);
        products.b_stride = stride_of(a.k);
        const auto* q = at(a.q, (b * queries + first) * stride_of(a.q) + h * dim);
        context.part<Gemms>().run(products, {.a = q, .b = k, .y = scores}, gemm_workspace);
        const auto* lengths = static_cast<const int32_t*>(a.lengths.data);
        softmax({scores, p, a.q.dtype, m, keys, first, queries, a.how.scale, a.how.causal,
                 lengths == nullptr ? nullptr : lengths + b},
                context.stream());
        GemmProblem sums{type, type, type, m, dim, keys};
        sums.transpose_b = false;
        sums.b_stride = stride_of(a.v);
        sums.y_stride = heads * dim;
        auto* y = static_cast<std::byte*>(a.y.data) +
                  ((b * queries + first) * heads + h) * dim * bits_of(a.y.dtype) / 8;
        context.part<Gemms>().run(sums, {.a = p, .b = v, .y = y}, gemm_workspace);
      }
    }
  }
}

}  // namespace halftone::cuda
