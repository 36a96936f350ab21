#include <cmath>
#include <limits>

#include "halftone/base/gaussian.h"
#include "halftone/base/threads.h"
#include "halftone/kernels/cpu/scalar/reference.h"
#include "halftone/kernels/dropout.h"

namespace halftone::reference {
namespace {

void rope(const RopeArgs& args, Stream) {
  auto x = read(args.x);
  const auto cosine = read(args.cosine), sine = read(args.sine);
  const int64_t heads = args.x.shape[2], half = args.x.shape[3] / 2;
  const int64_t tokens = args.x.shape[0] * args.x.shape[1];
  const bool interleaved = args.how.layout == RopeLayout::kInterleaved;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      double* head = x.data() + (t * heads + h) * 2 * half;
      for (int64_t i = 0; i < half; ++i) {
        double& a = head[interleaved ? 2 * i : i];
        double& b = head[interleaved ? 2 * i + 1 : i + half];
        const double c = cosine[t * half + i];
        const double s = args.how.inverse ? -sine[t * half + i] : sine[t * half + i];
        const double rotated = a * c - b * s;
        b = a * s + b * c;
        a = rotated;
      }
    }
  }
  write(args.y, x);
}

// One query against its keys: probabilities, and the offsets of keys and queries.
class Attention {
 public:
  Attention(const AttentionAttributes& how, const ConstView& q, const ConstView& k,
            const ConstView& lengths, const ConstView& bias)
      : how_(how),
        batch(q.shape[0]),
        queries(q.shape[1]),
        heads(q.shape[2]),
        dim(q.shape[3]),
        keys(k.shape[1]),
        groups(k.shape[2]),
        lengths_(read(lengths)),
        bias_(read(bias)),
        bias_stride_(bias_stride(bias.shape)) {}

  int64_t query(int64_t b, int64_t t, int64_t h) const {
    return ((b * queries + t) * heads + h) * dim;
  }
  int64_t key(int64_t b, int64_t s, int64_t h) const {
    return ((b * keys + s) * groups + h / (heads / groups)) * dim;
  }
  int64_t bias(int64_t b, int64_t t, int64_t h) const {  // of the first key
    return b * bias_stride_ + (h * queries + t) * keys;
  }
  // Keys that a query sees are 0 .. visible - 1.
  int64_t visible(int64_t b, int64_t t) const {
    int64_t count = lengths_.empty() ? keys : std::min(keys, static_cast<int64_t>(lengths_[b]));
    if (how_.causal) count = std::min(count, t + 1 + keys - queries);
    return count;
  }

  std::vector<double> probabilities(const std::vector<double>& q, const std::vector<double>& k,
                                    int64_t b, int64_t t, int64_t h) const {
    std::vector<double> p(static_cast<size_t>(visible(b, t)));
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (size_t s = 0; s < p.size(); ++s) {
      double dot = 0;
      for (int64_t d = 0; d < dim; ++d) {
        dot += q[query(b, t, h) + d] * k[key(b, static_cast<int64_t>(s), h) + d];
      }
      p[s] = dot * how_.scale;
      if (!bias_.empty()) p[s] += bias_[static_cast<size_t>(bias(b, t, h)) + s];
      largest = std::max(largest, p[s]);
    }
    for (double& v : p) sum += v = std::exp(v - largest);
    for (double& v : p) v /= sum;
    return p;
  }

 private:
  AttentionAttributes how_;

 public:
  int64_t batch, queries, heads, dim, keys, groups;

 private:
  std::vector<double> lengths_, bias_;
  int64_t bias_stride_;
};

void attention(const AttentionArgs& args, Stream) {
  const auto q = read(args.q), k = read(args.k), v = read(args.v);
  const Attention a(args.how, args.q, args.k, args.lengths, args.bias);
  std::vector<double> y(q.size(), 0.0);
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t t = 0; t < a.queries; ++t) {
      for (int64_t h = 0; h < a.heads; ++h) {
        const auto p = a.probabilities(q, k, b, t, h);
        for (size_t s = 0; s < p.size(); ++s) {
          const double* value = v.data() + a.key(b, static_cast<int64_t>(s), h);
          for (int64_t d = 0; d < a.dim; ++d) y[a.query(b, t, h) + d] += p[s] * value[d];
        }
      }
    }
  }
  write(args.y, y);
}

// dv = P^T dy; dp = dy v^T; ds = p (dp - sum(p dp)); dq = scale ds k; dk = scale ds^T q;
// dbias = ds
void attention_grad(const AttentionGradArgs& args, Stream) {
  const auto q = read(args.q), k = read(args.k), v = read(args.v), dy = read(args.dy);
  const Attention a(args.how, args.q, args.k, args.lengths, args.bias);
  std::vector<double> dq(q.size(), 0.0), dk(k.size(), 0.0), dv(v.size(), 0.0), dbias;
  if (args.dbias.data != nullptr) dbias.resize(static_cast<size_t>(args.dbias.shape.numel()));
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t t = 0; t < a.queries; ++t) {
      for (int64_t h = 0; h < a.heads; ++h) {
        const auto p = a.probabilities(q, k, b, t, h);
        std::vector<double> dp(p.size(), 0.0);
        const int64_t at = a.query(b, t, h);
        double mean = 0;
        for (size_t s = 0; s < p.size(); ++s) {
          const int64_t key = a.key(b, static_cast<int64_t>(s), h);
          for (int64_t d = 0; d < a.dim; ++d) {
            dp[s] += dy[at + d] * v[key + d];
            dv[key + d] += p[s] * dy[at + d];
          }
          mean += p[s] * dp[s];
        }
        for (size_t s = 0; s < p.size(); ++s) {
          const int64_t key = a.key(b, static_cast<int64_t>(s), h);
          const double from_score = p[s] * (dp[s] - mean), ds = from_score * args.how.scale;
          if (!dbias.empty()) dbias[static_cast<size_t>(a.bias(b, t, h)) + s] += from_score;
          for (int64_t d = 0; d < a.dim; ++d) {
            dq[at + d] += ds * k[key + d];
            dk[key + d] += ds * q[at + d];
          }
        }
      }
    }
  }
  write(args.dq, dq);
  write(args.dk, dk);
  write(args.dv, dv);
  write(args.dbias, dbias);
}

void embedding(const EmbeddingArgs& args, Stream) {
  const auto ids = read(args.ids);
  const int64_t cols = args.table.shape[1];
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<int64_t>(ids[i]);
    if (id < 0 || id >= args.table.shape[0]) {
      throw Error(ErrorCode::kInvalidInput, "embedding", "there is no token {} in a table of {}",
                  id, args.table.shape);
    }
    for (int64_t c = 0; c < cols; ++c) {
      store(args.y.data, args.y.dtype, static_cast<int64_t>(i) * cols + c,
            load(args.table.data, args.table.dtype, id * cols + c));
    }
  }
}

void embedding_grad(const EmbeddingGradArgs& args, Stream) {
  const auto dy = read(args.dy), ids = read(args.ids);
  const int64_t cols = args.dtable.shape[1];
  std::vector<double> dtable(static_cast<size_t>(args.dtable.shape.numel()), 0.0);
  for (size_t i = 0; i < ids.size(); ++i) {
    for (int64_t c = 0; c < cols; ++c) {
      dtable[static_cast<int64_t>(ids[i]) * cols + c] += dy[static_cast<int64_t>(i) * cols + c];
    }
  }
  write(args.dtable, dtable);
}

void pad_rows(const PadRowsArgs& args, Stream) {
  auto x = read(args.x);
  const auto token = read(args.token), lengths = read(args.lengths);
  const int64_t rows = args.x.shape[1], cols = args.x.shape[2];
  for (int64_t b = 0; b < args.x.shape[0]; ++b) {
    for (int64_t t = static_cast<int64_t>(lengths[b]); t < rows; ++t) {
      for (int64_t c = 0; c < cols; ++c) x[(b * rows + t) * cols + c] = token[c];
    }
  }
  write(args.y, x);
}

void pad_rows_grad(const PadRowsGradArgs& args, Stream) {
  auto dx = read(args.dy);
  const auto lengths = read(args.lengths);
  const int64_t rows = args.dx.shape[1], cols = args.dx.shape[2];
  std::vector<double> dtoken(static_cast<size_t>(cols), 0.0);
  for (int64_t b = 0; b < args.dx.shape[0]; ++b) {
    for (int64_t t = static_cast<int64_t>(lengths[b]); t < rows; ++t) {
      for (int64_t c = 0; c < cols; ++c) {
        dtoken[c] += dx[(b * rows + t) * cols + c];
        dx[(b * rows + t) * cols + c] = 0;
      }
    }
  }
  write(args.dx, dx);
  write(args.dtoken, dtoken);
}

void gaussian(const GaussianArgs& args, Stream stream) {
  const int64_t rows = args.keys.shape[0];
  const int64_t count = rows == 0 ? 0 : args.y.shape.numel() / rows, pairs = (count + 1) / 2;
  const auto* words = static_cast<const int32_t*>(args.keys.data);
  auto* y = static_cast<float*>(args.y.data);
  parallel_for(stream.threads, rows * pairs, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / pairs, at = i % pairs * 2;
      const auto two = gaussian_pair(philox_key(words + 4 * row), static_cast<uint64_t>(at / 2));
      y[row * count + at] = two.first;
      if (at + 1 < count) y[row * count + at + 1] = two.second;
    }
  });
}

void dropout(const DropoutArgs& args, Stream) {
  auto x = read(args.x);
  const int64_t rows = args.keys.shape[0];
  const int64_t count = rows == 0 ? 0 : args.y.shape.numel() / rows;
  const auto* words = static_cast<const int32_t*>(args.keys.data);
  const Dropout draw(args.how);
  for (int64_t i = 0; i < rows * count; ++i) {
    const int64_t at = i % count;
    const PhiloxBlock drawn = draw.block(philox_key(words + i / count * 4), at / 4 * 4);
    const float factor = draw.factor(drawn.word[at % 4]);
    x[i] = factor == 0 ? 0 : x[i] * factor;
  }
  write(args.y, x);
}

}  // namespace

void fill_tokens(Kernels& table) {
  table.rope = always(rope);
  table.attention = always(attention);
  table.attention_grad = always(attention_grad);
  table.embedding = always(embedding);
  table.embedding_grad = always(embedding_grad);
  table.pad_rows = always(pad_rows);
  table.pad_rows_grad = always(pad_rows_grad);
  table.gaussian = always(gaussian);
  table.dropout = always(dropout);
}

}  // namespace halftone::reference
