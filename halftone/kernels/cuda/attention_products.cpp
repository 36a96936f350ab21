#include "halftone/kernels/cuda/attention_products.h"

#include <algorithm>

#include "halftone/kernels/cuda/backend.h"
#include "halftone/kernels/cuda/gemm.h"
#include "halftone/kernels/workspace.h"

namespace halftone::cuda {
namespace {

// Queries of a tile: so many that its scores take about this much.
constexpr int64_t kTileScores = int64_t{1} << 25;
int64_t tile_rows(const ConstView& q, const ConstView& k) {
  const int64_t keys = std::max<int64_t>(k.shape[1], 1);
  return std::clamp<int64_t>(kTileScores / keys / 128 * 128, 128,
                             std::max<int64_t>(q.shape[1], 128));
}

int64_t bytes_of(DType dtype, int64_t count) { return count * bits_of(dtype) / 8; }
const std::byte* at(const ConstView& x, int64_t elements) {
  return static_cast<const std::byte*>(x.data) + bytes_of(x.dtype, elements);
}
std::byte* at(const View& x, int64_t elements) {
  return static_cast<std::byte*>(x.data) + bytes_of(x.dtype, elements);
}
// Elements from one token to the next.
int64_t stride_of(const ConstView& x) {
  return x.token_stride > 0 ? x.token_stride : x.shape[2] * x.shape[3];
}
cudaDataType_t type_of(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

// One head of one item: products of its rows.
class Head {
 public:
  Head(const AttentionAttributes& how, const ConstView& q, const ConstView& k,
       const ConstView& lengths, const Stream& stream)
      : how_(how), q_(q), k_(k), lengths_(lengths), context_(context_of(stream)) {}

  int64_t queries() const { return q_.shape[1]; }
  int64_t keys() const { return k_.shape[1]; }
  int64_t heads() const { return q_.shape[2]; }
  int64_t groups() const { return k_.shape[2]; }
  int64_t dim() const { return q_.shape[3]; }

  void choose(int64_t item, int64_t head, std::byte* workspace) {
    item_ = item;
    head_ = head;
    workspace_ = workspace;
  }
  int64_t group() const { return head_ / (heads() / groups()); }

  // From element (row, this head) of a [B, T, H, D].
  const std::byte* rows(const ConstView& x, int64_t head, int64_t first) const {
    return at(x, (item_ * x.shape[1] + first) * stride_of(x) + head * dim());
  }
  std::byte* rows(const View& x, int64_t head, int64_t first) const {
    return at(x, ((item_ * x.shape[1] + first) * x.shape[2] + head) * dim());
  }

  // p [count, keys] = softmax of the scores of queries [first, first + count).
  void weights(int64_t first, int64_t count, float* scores, std::byte* p) const {
    GemmProblem products{type_of(q_.dtype), type_of(k_.dtype), CUDA_R_32F, count, keys(), dim()};
    products.a_stride = stride_of(q_);
    products.b_stride = stride_of(k_);
    run(products, rows(q_, head_, first), rows(k_, group(), 0), scores);
    const auto* lengths = static_cast<const int32_t*>(lengths_.data);
    softmax({scores, p, q_.dtype, count, keys(), first, queries(), how_.scale, how_.causal,
             lengths == nullptr ? nullptr : lengths + item_},
            context_.stream());
  }

  // What a problem adds to is in y.
  void run(const GemmProblem& problem, const void* a, const void* b, void* y) const {
    const GemmPointers pointers{.a = a, .b = b, .addend = problem.add ? y : nullptr, .y = y};
    context_.part<Gemms>().run(problem, pointers, workspace_);
  }
  cudaStream_t stream() const { return context_.stream(); }

 private:
  const AttentionAttributes& how_;
  const ConstView &q_, &k_, &lengths_;
  Context& context_;
  int64_t item_ = 0, head_ = 0;
  std::byte* workspace_ = nullptr;
};

}  // namespace

int64_t product_attention_workspace(const AttentionArgs& a) {
  const int64_t scores = tile_rows(a.q, a.k) * a.k.shape[1];
  return aligned_bytes(Gemms::kWorkspaceBytes) + aligned_bytes(scores * 4) +
         aligned_bytes(bytes_of(a.q.dtype, scores));
}

void product_attention(const AttentionArgs& a, const Stream& stream) {
  HT_ASSERT(a.q.dtype == a.k.dtype && a.q.dtype == a.v.dtype && a.q.dtype == a.y.dtype);
  Head head(a.how, a.q, a.k, a.lengths, stream);
  const int64_t queries = head.queries(), keys = head.keys(), dim = head.dim();
  Workspace workspace(stream);
  std::byte* gemm_workspace = workspace.bytes(Gemms::kWorkspaceBytes);
  const int64_t rows = tile_rows(a.q, a.k);
  float* scores = workspace.floats(rows * keys);
  std::byte* p = workspace.bytes(bytes_of(a.q.dtype, rows * keys));
  const cudaDataType_t type = type_of(a.q.dtype);
  for (int64_t b = 0; b < a.q.shape[0]; ++b) {
    for (int64_t h = 0; h < head.heads(); ++h) {
      head.choose(b, h, gemm_workspace);
      for (int64_t first = 0; first < queries; first += rows) {
        const int64_t m = std::min(rows, queries - first);
        head.weights(first, m, scores, p);
        GemmProblem sums{type, type, type, m, dim, keys};
        sums.transpose_b = false;
        sums.b_stride = stride_of(a.v);
        sums.y_stride = head.heads() * dim;
        head.run(sums, p, head.rows(a.v, head.group(), 0), head.rows(a.y, h, first));
      }
    }
  }
}

int64_t product_attention_grad_workspace(const AttentionGradArgs& a) {
  const int64_t scores = tile_rows(a.q, a.k) * a.k.shape[1];
  const int64_t sums = a.k.shape[1] * a.q.shape[3];
  return aligned_bytes(Gemms::kWorkspaceBytes) + 2 * aligned_bytes(scores * 4) +
         aligned_bytes(bytes_of(a.q.dtype, scores)) + 2 * aligned_bytes(sums * 4);
}

// Gradients of keys and values are summed over tiles of queries and the heads of a group, in F32.
void product_attention_grad(const AttentionGradArgs& a, const Stream& stream) {
  HT_ASSERT(a.q.dtype == a.k.dtype && a.q.dtype == a.v.dtype && a.q.dtype == a.dy.dtype &&
            a.q.dtype == a.dq.dtype && a.dk.dtype == a.dv.dtype);
  Head head(a.how, a.q, a.k, a.lengths, stream);
  const int64_t queries = head.queries(), keys = head.keys(), dim = head.dim();
  Workspace workspace(stream);
  std::byte* gemm_workspace = workspace.bytes(Gemms::kWorkspaceBytes);
  const int64_t rows = tile_rows(a.q, a.k), per_group = head.heads() / head.groups();
  float *scores = workspace.floats(rows * keys), *dp = workspace.floats(rows * keys);
  std::byte* p = workspace.bytes(bytes_of(a.q.dtype, rows * keys));
  float *dk = workspace.floats(keys * dim), *dv = workspace.floats(keys * dim);
  const cudaDataType_t type = type_of(a.q.dtype);
  const auto write = [&](const float* sums, const View& to) {
    CopyArgs copy;
    copy.rank = 2;
    copy.dims = {keys, dim};
    copy.x_strides = {dim, 1};
    copy.y_strides = {head.groups() * dim, 1};
    copy.x = sums;
    copy.y = head.rows(to, head.group(), 0);
    copy.y_dtype = to.dtype;
    cuda_kernels().copy.launch(copy, stream);
  };
  for (int64_t b = 0; b < a.q.shape[0]; ++b) {
    for (int64_t h = 0; h < head.heads(); ++h) {
      head.choose(b, h, gemm_workspace);
      for (int64_t first = 0; first < queries; first += rows) {
        const int64_t m = std::min(rows, queries - first);
        const bool more = first > 0 || h % per_group != 0;
        head.weights(first, m, scores, p);
        const auto* dy = head.rows(a.dy, h, first);
        // dv += p^T dy
        GemmProblem values{type, type, CUDA_R_32F, keys, dim, m};
        values.transpose_a = true;
        values.transpose_b = false;
        values.add = more;
        values.b_stride = stride_of(a.dy);
        head.run(values, p, dy, dv);
        // dp = dy v^T, and from it ds in p's place
        GemmProblem products{type, type, CUDA_R_32F, m, keys, dim};
        products.a_stride = stride_of(a.dy);
        products.b_stride = stride_of(a.v);
        head.run(products, dy, head.rows(a.v, head.group(), 0), dp);
        softmax_grad({p, dp, p, a.q.dtype, m, keys, a.how.scale}, head.stream());
        // dq = ds k; dk += ds^T q
        GemmProblem towards_q{type, type, type, m, dim, keys};
        towards_q.transpose_b = false;
        towards_q.b_stride = stride_of(a.k);
        towards_q.y_stride = head.heads() * dim;
        head.run(towards_q, p, head.rows(a.k, head.group(), 0), head.rows(a.dq, h, first));
        GemmProblem towards_k = values;
        towards_k.b_stride = stride_of(a.q);
        head.run(towards_k, p, head.rows(a.q, h, first), dk);
      }
      if ((h + 1) % per_group != 0) continue;
      write(dk, a.dk);
      write(dv, a.dv);
    }
  }
}

}  // namespace halftone::cuda
