// Gradients of attention, by tiles of queries as the forward pass has them: probabilities are
// formed again, and everything else is a product. All heads that share keys are one thread's, so
// that sums over queries and heads are formed in one order.
#include "halftone/kernels/cpu/fast/gemm.h"
#include "halftone/kernels/cpu/fast/heads.h"

namespace halftone::fast {
namespace {

// dv = p^T dy; dp = dy v^T; dbias = p (dp - sum(p dp)); ds = scale dbias; dq = ds k; dk = ds^T q
class AttentionGrad {
 public:
  explicit AttentionGrad(const AttentionGradArgs& args)
      : args_(args),
        batch_(args.q.shape[0]),
        queries_(args.q.shape[1]),
        heads_(args.q.shape[2]),
        dim_(args.q.shape[3]),
        keys_(args.k.shape[1]),
        groups_(args.k.shape[2]) {}

  int64_t workspace(int threads) const {
    return workers(threads) * per_worker() + float_workspace({bias_sums()});
  }
  int64_t library(int threads) const {
    const int64_t rows = std::min(queries_, kQueryTile);
    return workers(threads) *
           std::max({packed_bytes(rows, keys_, dim_), packed_bytes(rows, dim_, keys_),
                     packed_bytes(keys_, dim_, rows)});
  }

  void run(Stream stream) const {
    Workspace workspace(stream);
    const int64_t count = workers(stream.threads), all = units();
    float* bias_sums = workspace.floats(this->bias_sums());
    std::byte* memory = workspace.bytes(count * per_worker());
    require_memory_for_products(stream.threads);
    parallel_for(stream.threads, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) {
        Buffers buffers = carve(memory + w * per_worker());
        buffers.bias_sums =
            args_.dbias.dtype == DType::kF32 ? static_cast<float*>(args_.dbias.data) : bias_sums;
        for (int64_t u = all * w / count; u < all * (w + 1) / count; ++u) unit(u, buffers);
      }
    });
  }

 private:
  struct Buffers {
    float *k, *v, *dk, *dv;           // [keys, dim]
    float *q, *dy, *dq;               // [kQueryTile, dim]
    float *probabilities, *d_scores;  // [kQueryTile, keys]
    float* bias;                      // [keys]
    float* bias_sums;                 // as dbias, of all workers
  };

  int64_t workers(int threads) const {
    return std::clamp<int64_t>(threads, 1, std::max<int64_t>(1, units()));
  }
  // Whoever sums a bias' gradient over items has them all.
  bool sums_items() const { return args_.dbias.data != nullptr && args_.dbias.shape.rank() == 3; }
  int64_t units() const { return sums_items() ? groups_ : batch_ * groups_; }
  int64_t bias_sums() const {
    return args_.dbias.data == nullptr || args_.dbias.dtype == DType::kF32
               ? 0
               : args_.dbias.shape.numel();
  }
  int64_t bias_floats() const {
    return args_.bias.data == nullptr || args_.bias.dtype == DType::kF32 ? 0 : keys_;
  }
  int64_t per_worker() const {
    const int64_t all = keys_ * dim_, tile = kQueryTile * dim_, scores = kQueryTile * keys_;
    return float_workspace({all, all, all, all, tile, tile, tile, scores, scores, bias_floats()});
  }
  Buffers carve(std::byte* memory) const {
    Workspace workspace(Stream{1, nullptr, memory, per_worker()});
    Buffers b{};
    for (float** x : {&b.k, &b.v, &b.dk, &b.dv}) *x = workspace.floats(keys_ * dim_);
    for (float** x : {&b.q, &b.dy, &b.dq}) *x = workspace.floats(kQueryTile * dim_);
    for (float** x : {&b.probabilities, &b.d_scores}) *x = workspace.floats(kQueryTile * keys_);
    b.bias = workspace.floats(bias_floats());
    return b;
  }

  void unit(int64_t index, const Buffers& b) const {
    const int64_t share = heads_ / groups_, plane = queries_ * keys_;
    const int64_t at = index * share * plane, count = share * plane;  // of dbias
    if (args_.dbias.data != nullptr) std::fill_n(b.bias_sums + at, count, 0.0f);
    if (sums_items()) {
      for (int64_t item = 0; item < batch_; ++item) group(item * groups_ + index, b);
    } else {
      group(index, b);
    }
    if (args_.dbias.data != nullptr) write(args_.dbias, at, count, b.bias_sums + at);
  }

  void group(int64_t index, const Buffers& b) const {
    const int64_t item = index / groups_, group = index % groups_, share = heads_ / groups_;
    const auto* lengths = static_cast<const int32_t*>(args_.lengths.data);
    const int64_t length = lengths == nullptr ? keys_ : std::min<int64_t>(keys_, lengths[item]);
    gather_head(args_.k, item * keys_, length, group, b.k);
    gather_head(args_.v, item * keys_, length, group, b.v);
    std::fill_n(b.dk, keys_ * dim_, 0.0f);
    std::fill_n(b.dv, keys_ * dim_, 0.0f);
    for (int64_t h = group * share; h < (group + 1) * share; ++h) {
      for (int64_t first = 0; first < queries_; first += kQueryTile) {
        tile(item, h, first, length, b);
      }
    }
    scatter_head(b.dk, item * keys_, keys_, group, args_.dk);
    scatter_head(b.dv, item * keys_, keys_, group, args_.dv);
  }

  void tile(int64_t item, int64_t head, int64_t first, int64_t length, const Buffers& b) const {
    const int64_t count = std::min(kQueryTile, queries_ - first), start = item * queries_ + first;
    gather_head(args_.q, start, count, head, b.q);
    gather_head(args_.dy, start, count, head, b.dy);
    // Keys that the last query of the tile sees; earlier ones may see fewer.
    const int64_t seen = std::min(length, limit(first + count - 1));
    gemm({count, seen, dim_, b.q, dim_, b.k, dim_, b.probabilities, keys_});
    gemm({count, seen, dim_, b.dy, dim_, b.v, dim_, b.d_scores, keys_});
    for (int64_t i = 0; i < count; ++i) {
      float *p = b.probabilities + i * keys_, *ds = b.d_scores + i * keys_;
      const int64_t own = std::min(seen, limit(first + i));
      const float* bias = bias_row(args_.bias, item, head, first + i, own, b.bias);
      const float total = softmax_terms(p, args_.how.scale, bias, own);
      affine(p, {1.0f / total, 0}, own, p);
      std::fill(p + own, p + seen, 0.0f);
      affine(ds, {1, -dot(p, ds, own)}, own, ds);
      multiply(p, ds, own, ds);
      if (args_.dbias.data != nullptr) {
        float* sums = b.bias_sums + item * bias_stride(args_.dbias.shape) +
                      (head * queries_ + first + i) * keys_;
        add(sums, ds, own, sums);
      }
      affine(ds, {args_.how.scale, 0}, own, ds);
      std::fill(ds + own, ds + seen, 0.0f);
    }
    gemm({count, dim_, seen, b.d_scores, keys_, b.k, dim_, b.dq, dim_, false, false});
    gemm({seen, dim_, count, b.d_scores, keys_, b.q, dim_, b.dk, dim_, true, false, 1, 1});
    gemm({seen, dim_, count, b.probabilities, keys_, b.dy, dim_, b.dv, dim_, true, false, 1, 1});
    scatter_head(b.dq, start, count, head, args_.dq);
  }
  int64_t limit(int64_t query) const {
    return args_.how.causal ? query + 1 + keys_ - queries_ : keys_;
  }

  const AttentionGradArgs& args_;
  int64_t batch_, queries_, heads_, dim_, keys_, groups_;
};

bool is_mine(const AttentionGradArgs& a) {
  const auto real = [](const View& y) { return y.data == nullptr || is_real(y.dtype); };
  return is_real(a.q.dtype) && is_real(a.k.dtype) && is_real(a.v.dtype) && is_real(a.dy.dtype) &&
         (a.bias.data == nullptr || is_real(a.bias.dtype)) && real(a.dbias) && real(a.dq) &&
         real(a.dk) && real(a.dv) && a.q.shape.numel() > 0 && a.k.shape.numel() > 0;
}

}  // namespace

void fill_attention_grad(Kernels& table) {
  table.attention_grad.prefer(
      {is_mine, [](const AttentionGradArgs& a, Stream s) { AttentionGrad(a).run(s); },
       [](const AttentionGradArgs& a, const Stream& s) {
         return AttentionGrad(a).workspace(s.threads);
       },
       /*reference=*/false, /*prepare=*/nullptr,
       [](const AttentionGradArgs& a, const Stream& s) {
         return AttentionGrad(a).library(s.threads);
       }});
}

}  // namespace halftone::fast
