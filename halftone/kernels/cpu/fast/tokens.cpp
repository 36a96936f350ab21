#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

void rope(const RopeArgs& args, Stream stream) {
  Workspace workspace(stream);
  const int64_t heads = args.x.shape[2], dim = args.x.shape[3], half = dim / 2;
  const int64_t tokens = args.x.shape[0] * args.x.shape[1], cols = heads * dim;
  const float sign = args.how.inverse ? -1.0f : 1.0f;
  const auto* cosine = static_cast<const float*>(args.cosine.data);
  const auto* sine = static_cast<const float*>(args.sine.data);
  const RowBuffers buffers(args.x, args.y, cols, stream, workspace);
  buffers.for_rows(tokens, [&](int64_t t, float* in, float* out) {
    const float* x = read(args.x, t * cols, cols, in);
    float* y = target(args.y, t * cols, out);
    for (int64_t h = 0; h < heads; ++h) {
      rotate(x + h * dim, {args.how.layout, sign, cosine + t * half, sine + t * half}, dim,
             y + h * dim);
    }
    write(args.y, t * cols, cols, y);
  });
}

// Rows of an item from its length on are the token.
void pad_rows(const PadRowsArgs& args, Stream stream) {
  const int64_t rows = args.x.shape[1], cols = args.x.shape[2];
  const auto* lengths = static_cast<const int32_t*>(args.lengths.data);
  for_rows(stream, args.x.shape[0] * rows, cols, [&](int64_t begin, int64_t end) {
    float buffer[kPiece];
    for (int64_t r = begin; r < end; ++r) {
      const bool padded = r % rows >= lengths[r / rows];
      const ConstView& from = padded ? args.token : args.x;
      for (int64_t c = 0; c < cols; c += kPiece) {
        const int64_t n = std::min(kPiece, cols - c), at = r * cols + c;
        const float* values = read(from, padded ? c : at, n, buffer);
        float* y = target(args.y, at, buffer);
        if (y != values) std::copy_n(values, n, y);
        write(args.y, at, n, y);
      }
    }
  });
}

// One head of one row of the batch: keys and values as float, then query by query. Where the build
// has no oneDNN.
class Attention {
 public:
  explicit Attention(const AttentionArgs& args)
      : args_(args),
        queries_(args.q.shape[1]),
        heads_(args.q.shape[2]),
        dim_(args.q.shape[3]),
        keys_(args.k.shape[1]),
        groups_(args.k.shape[2]) {}

  int64_t workspace(const Stream& stream) const {
    return float_workspace({workers(stream) * floats_per_worker()});
  }

  void run(Stream stream) const {
    Workspace workspace(stream);
    const int64_t all = args_.q.shape[0] * heads_, count = workers(stream);
    float* memory = workspace.floats(count * floats_per_worker());
    parallel_for(stream.threads, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) {
        float* own = memory + w * floats_per_worker();
        for (int64_t h = all * w / count; h < all * (w + 1) / count; ++h) head(h, own);
      }
    });
  }

 private:
  int64_t workers(const Stream& stream) const {
    return std::clamp<int64_t>(stream.threads, 1, std::max<int64_t>(1, args_.q.shape[0] * heads_));
  }
  int64_t floats_per_worker() const { return 2 * keys_ * dim_ + keys_ + 2 * dim_; }

  void head(int64_t index, float* memory) const {
    float *k = memory, *v = k + keys_ * dim_, *scores = v + keys_ * dim_;
    float *query = scores + keys_, *out = query + dim_;
    const auto* lengths = static_cast<const int32_t*>(args_.lengths.data);
    const int64_t b = index / heads_, h = index % heads_, g = h / (heads_ / groups_);
    const int64_t length = lengths == nullptr ? keys_ : std::min<int64_t>(keys_, lengths[b]);
    for (int64_t s = 0; s < length; ++s) {
      const int64_t at = ((b * keys_ + s) * groups_ + g) * dim_;
      for (const auto& [from, to] : {std::pair{&args_.k, k}, std::pair{&args_.v, v}}) {
        const float* row = read(*from, at, dim_, to + s * dim_);
        if (row != to + s * dim_) std::copy_n(row, dim_, to + s * dim_);
      }
    }
    for (int64_t t = 0; t < queries_; ++t) {
      const int64_t at = ((b * queries_ + t) * heads_ + h) * dim_;
      const float* q = read(args_.q, at, dim_, query);
      const int64_t seen = args_.how.causal ? std::min(length, t + 1 + keys_ - queries_) : length;
      for (int64_t s = 0; s < seen; ++s) scores[s] = dot(q, k + s * dim_, dim_);
      const float scale = 1.0f / softmax_terms(scores, args_.how.scale, seen);
      float* y = target(args_.y, at, out);
      std::fill(y, y + dim_, 0.0f);
      for (int64_t s = 0; s < seen; ++s) {
        for (int64_t d = 0; d < dim_; ++d) y[d] += scores[s] * v[s * dim_ + d];
      }
      for (int64_t d = 0; d < dim_; ++d) y[d] *= scale;
      write(args_.y, at, dim_, y);
    }
  }

  const AttentionArgs& args_;
  int64_t queries_, heads_, dim_, keys_, groups_;
};

bool is_mine(const RopeArgs& a) {
  return is_real(a.x.dtype) && a.cosine.dtype == DType::kF32 && a.sine.dtype == DType::kF32;
}
// Tokens are weights, which may be stored in fewer bits than the rows that they stand among.
bool is_mine(const PadRowsArgs& a) {
  return is_real(a.x.dtype) && is_real(a.y.dtype) && a.token.dtype != DType::kF64;
}
bool is_mine(const AttentionArgs& a) {
  return is_real(a.q.dtype) && is_real(a.k.dtype) && is_real(a.v.dtype) && a.y.shape.numel() > 0;
}

}  // namespace

void fill_tokens(Kernels& table) {
  table.rope.prefer({is_mine, rope, [](const RopeArgs& a, const Stream& s) {
                       return RowBuffers::workspace(a.x, a.y, a.x.shape[2] * a.x.shape[3], s);
                     }});
  table.pad_rows.prefer({is_mine, pad_rows});
  table.attention.prefer(
      {is_mine, [](const AttentionArgs& a, Stream s) { Attention(a).run(s); },
       [](const AttentionArgs& a, const Stream& s) { return Attention(a).workspace(s); }});
}

}  // namespace halftone::fast
