// Attention as two matrix products per head and tile of queries, with the softmax between them.
// Heads are dealt to threads; the products run on the thread that has the head. Tiles start at
// multiples of kQueryTile, whatever the length, so that a row of a batch sees the same tiles as
// alone.
#include "halftone/kernels/cpu/fast/gemm.h"
#include "halftone/kernels/cpu/fast/heads.h"
#include "halftone/kernels/workspace.h"

namespace halftone::fast {
namespace {

class ProductAttention {
 public:
  explicit ProductAttention(const AttentionArgs& args)
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
           std::max(packed_bytes(rows, keys_, dim_), packed_bytes(rows, dim_, keys_));
  }

  void run(Stream stream) const {
    Workspace workspace(stream);
    const int64_t count = workers(stream.threads);
    std::byte* memory = workspace.bytes(count * per_worker());
    require_memory_for_products(stream.threads);
    parallel_for(stream.threads, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) {
        const Buffers buffers = carve(memory + w * per_worker());
        const int64_t all = batch_ * heads_;
        for (int64_t h = all * w / count; h < all * (w + 1) / count; ++h) head(h, buffers);
      }
    });
  }

 private:
  struct Buffers {
    float *k, *v, *q, *scores, *out, *sums, *bias;
  };

  int64_t workers(int threads) const {
    return std::clamp<int64_t>(threads, 1, std::max<int64_t>(1, batch_ * heads_));
  }
  int64_t per_worker() const {
    return float_workspace({keys_ * dim_, keys_ * dim_, kQueryTile * dim_, kQueryTile * keys_,
                            kQueryTile * dim_, kQueryTile, bias_floats()});
  }
  int64_t bias_floats() const {  // a row of it, where it is stored in something else
    return args_.bias.data == nullptr || args_.bias.dtype == DType::kF32 ? 0 : keys_;
  }
  Buffers carve(std::byte* memory) const {
    Workspace workspace(Stream{1, nullptr, memory, per_worker()});
    Buffers b{};
    b.k = workspace.floats(keys_ * dim_);
    b.v = workspace.floats(keys_ * dim_);
    b.q = workspace.floats(kQueryTile * dim_);
    b.scores = workspace.floats(kQueryTile * keys_);
    b.out = workspace.floats(kQueryTile * dim_);
    b.sums = workspace.floats(kQueryTile);
    b.bias = workspace.floats(bias_floats());
    return b;
  }

  void head(int64_t index, const Buffers& b) const {
    const int64_t item = index / heads_, h = index % heads_, group = h / (heads_ / groups_);
    const auto* lengths = static_cast<const int32_t*>(args_.lengths.data);
    const int64_t length = lengths == nullptr ? keys_ : std::min<int64_t>(keys_, lengths[item]);
    gather_head(args_.k, item * keys_, length, group, b.k);
    gather_head(args_.v, item * keys_, length, group, b.v);
    for (int64_t first = 0; first < queries_; first += kQueryTile) {
      const int64_t count = std::min(kQueryTile, queries_ - first);
      gather_head(args_.q, item * queries_ + first, count, h, b.q);
      // Keys that the last query of the tile sees; earlier ones may see fewer.
      const int64_t seen = std::min(length, limit(first + count - 1));
      gemm({count, seen, dim_, b.q, dim_, b.k, dim_, b.scores, keys_});
      for (int64_t i = 0; i < count; ++i) {
        float* row = b.scores + i * keys_;
        const int64_t own = std::min(seen, limit(first + i));
        const float* bias = bias_row(args_.bias, item, h, first + i, own, b.bias);
        b.sums[i] = softmax_terms(row, args_.how.scale, bias, own);
        std::fill(row + own, row + seen, 0.0f);
      }
      gemm({count, dim_, seen, b.scores, keys_, b.v, dim_, b.out, dim_, false, false});
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = ((item * queries_ + first + i) * heads_ + h) * dim_;
        float* y = target(args_.y, at, b.out + i * dim_);
        affine(b.out + i * dim_, {1.0f / b.sums[i], 0}, dim_, y);
        write(args_.y, at, dim_, y);
      }
    }
  }
  int64_t limit(int64_t query) const {
    return args_.how.causal ? query + 1 + keys_ - queries_ : keys_;
  }

  const AttentionArgs& args_;
  int64_t batch_, queries_, heads_, dim_, keys_, groups_;
};

bool takes_products(const AttentionArgs& a) {
  const bool bias = a.bias.data == nullptr || is_real(a.bias.dtype);
  return is_real(a.q.dtype) && is_real(a.k.dtype) && is_real(a.v.dtype) && bias &&
         a.y.shape.numel() > 0;
}

}  // namespace

void fill_attention(Kernels& table) {
  table.attention.prefer({takes_products,
                          [](const AttentionArgs& a, Stream s) { ProductAttention(a).run(s); },
                          [](const AttentionArgs& a, const Stream& s) {
                            return ProductAttention(a).workspace(s.threads);
                          },
                          /*reference=*/false, /*prepare=*/nullptr,
                          [](const AttentionArgs& a, const Stream& s) {
                            return ProductAttention(a).library(s.threads);
                          }});
}

}  // namespace halftone::fast
