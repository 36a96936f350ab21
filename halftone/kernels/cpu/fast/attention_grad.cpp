// Gradients of attention, by tiles of queries as the forward pass has them: probabilities are
// formed again, and everything else is a product. All heads that share keys are one thread's, so
// that sums over queries and heads are formed in one order.
#include "halftone/kernels/cpu/fast/gemm.h"
#include "halftone/kernels/cpu/fast/heads.h"

namespace halftone::fast {
namespace {

// dv = p^T dy; dp = dy v^T; ds = scale p (dp - sum(p dp)); dq = ds k; dk = ds^T q
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

  int64_t workspace(int threads) const { return workers(threads) * per_worker(); }
  int64_t library(int threads) const {
    const int64_t rows = std::min(queries_, kQueryTile);
    return workers(threads) *
           std::max({packed_bytes(rows, keys_, dim_), packed_bytes(rows, dim_, keys_),
                     packed_bytes(keys_, dim_, rows)});
  }

  void run(Stream stream) const {
    Workspace workspace(stream);
    const int64_t count = workers(stream.threads), all = batch_ * groups_;
    std::byte* memory = workspace.bytes(count * per_worker());
    require_memory_for_products(stream.threads);
    parallel_for(stream.threads, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) {
        const Buffers buffers = carve(memory + w * per_worker());
        for (int64_t g = all * w / count; g < all * (w + 1) / count; ++g) group(g, buffers);
      }
    });
  }

 private:
  struct Buffers {
    float *k, *v, *dk, *dv;           // [keys, dim]
    float *q, *dy, *dq;               // [kQueryTile, dim]
    float *probabilities, *d_scores;  // [kQueryTile, keys]
  };

  int64_t workers(int threads) const {
    return std::clamp<int64_t>(threads, 1, std::max<int64_t>(1, batch_ * groups_));
  }
  int64_t per_worker() const {
    const int64_t all = keys_ * dim_, tile = kQueryTile * dim_, scores = kQueryTile * keys_;
    return float_workspace({all, all, all, all, tile, tile, tile, scores, scores});
  }
  Buffers carve(std::byte* memory) const {
    Workspace workspace(Stream{1, nullptr, memory, per_worker()});
    Buffers b{};
    for (float** x : {&b.k, &b.v, &b.dk, &b.dv}) *x = workspace.floats(keys_ * dim_);
    for (float** x : {&b.q, &b.dy, &b.dq}) *x = workspace.floats(kQueryTile * dim_);
    for (float** x : {&b.probabilities, &b.d_scores}) *x = workspace.floats(kQueryTile * keys_);
    return b;
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
      const float total = softmax_terms(p, args_.how.scale, own);
      affine(p, {1.0f / total, 0}, own, p);
      std::fill(p + own, p + seen, 0.0f);
      affine(ds, {1, -dot(p, ds, own)}, own, ds);
      multiply(p, ds, own, ds);
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
         real(a.dq) && real(a.dk) && real(a.dv) && a.q.shape.numel() > 0 && a.k.shape.numel() > 0;
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
