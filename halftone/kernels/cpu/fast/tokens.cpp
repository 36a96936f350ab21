#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

void rope(const RopeArgs& args, Stream stream) {
  const int64_t heads = args.x.shape[2], dim = args.x.shape[3], half = dim / 2;
  const int64_t tokens = args.x.shape[0] * args.x.shape[1], cols = heads * dim;
  const float sign = args.how.inverse ? -1.0f : 1.0f;
  const Floats cosine(args.cosine), sine(args.sine);
  for_rows(stream, tokens, cols, [&](int64_t begin, int64_t end) {
    std::vector<float> in(static_cast<size_t>(cols)), out(static_cast<size_t>(cols));
    for (int64_t t = begin; t < end; ++t) {
      const float* x = read(args.x, t * cols, cols, in.data());
      float* y = target(args.y, t * cols, out.data());
      const float *c = cosine.data() + t * half, *s = sine.data() + t * half;
      for (int64_t h = 0; h < heads; ++h) {
        rotate(x + h * dim, {args.how.layout, sign, c, s}, dim, y + h * dim);
      }
      write(args.y, t * cols, cols, y);
    }
  });
}

// One head of one row of the batch: keys and values as float, then query by query.
void attention(const AttentionArgs& args, Stream stream) {
  const int64_t batch = args.q.shape[0], queries = args.q.shape[1], heads = args.q.shape[2];
  const int64_t dim = args.q.shape[3], keys = args.k.shape[1], groups = args.k.shape[2];
  const auto* lengths = static_cast<const int32_t*>(args.lengths.data);
  parallel_for(stream.threads, batch * heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> k(static_cast<size_t>(keys * dim)), v(static_cast<size_t>(keys * dim));
    std::vector<float> scores(static_cast<size_t>(keys)), query(static_cast<size_t>(dim));
    std::vector<float> out(static_cast<size_t>(dim)), scratch(static_cast<size_t>(dim));
    for (int64_t bh = begin; bh < end; ++bh) {
      const int64_t b = bh / heads, h = bh % heads, g = h / (heads / groups);
      const int64_t length = lengths == nullptr ? keys : std::min<int64_t>(keys, lengths[b]);
      for (int64_t s = 0; s < length; ++s) {
        const int64_t at = ((b * keys + s) * groups + g) * dim;
        const float* key = read(args.k, at, dim, scratch.data());
        std::copy(key, key + dim, k.data() + s * dim);
        const float* value = read(args.v, at, dim, scratch.data());
        std::copy(value, value + dim, v.data() + s * dim);
      }
      for (int64_t t = 0; t < queries; ++t) {
        const int64_t at = ((b * queries + t) * heads + h) * dim;
        const float* q = read(args.q, at, dim, query.data());
        const int64_t seen = args.how.causal ? std::min(length, t + 1 + keys - queries) : length;
        for (int64_t s = 0; s < seen; ++s) scores[s] = dot(q, k.data() + s * dim, dim);
        const float scale = 1.0f / softmax_terms(scores.data(), args.how.scale, seen);
        float* y = target(args.y, at, out.data());
        std::fill(y, y + dim, 0.0f);
        for (int64_t s = 0; s < seen; ++s) {
          const float* value = v.data() + s * dim;
          for (int64_t d = 0; d < dim; ++d) y[d] += scores[s] * value[d];
        }
        for (int64_t d = 0; d < dim; ++d) y[d] *= scale;
        write(args.y, at, dim, y);
      }
    }
  });
}

}  // namespace

void fill_tokens(Kernels& table) {
  table.rope.launch = [](const RopeArgs& a, Stream s) {
    is_real(a.x.dtype) && a.cosine.dtype == DType::kF32 ? rope(a, s)
                                                        : cpu_scalar_kernels().rope.launch(a, s);
  };
  table.attention.launch = [](const AttentionArgs& a, Stream s) {
    is_real(a.q.dtype) ? attention(a, s) : cpu_scalar_kernels().attention.launch(a, s);
  };
}

}  // namespace halftone::fast
