#include "halftone/kernels/cpu/fast/rows.h"
#include "halftone/kernels/dropout.h"

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

// One draw makes four values.
void dropout(const DropoutArgs& args, Stream stream) {
  const int64_t rows = args.keys.shape[0], count = args.y.shape.numel() / rows;
  const auto* words = static_cast<const int32_t*>(args.keys.data);
  const Dropout draw(args.how);
  const int64_t pieces = (count + kPiece - 1) / kPiece;
  for_rows(stream, rows * pieces, kPiece, [&](int64_t begin, int64_t end) {
    float buffer[kPiece];
    for (int64_t p = begin; p < end; ++p) {
      const int64_t row = p / pieces, first = p % pieces * kPiece;
      const int64_t n = std::min(kPiece, count - first), at = row * count + first;
      const float* x = read(args.x, at, n, buffer);
      float* y = target(args.y, at, buffer);
      const PhiloxKey key = philox_key(words + 4 * row);
      for (int64_t i = 0; i < n; i += 4) {
        const PhiloxBlock drawn = draw.block(key, first + i);
        for (int64_t k = i; k < std::min(i + 4, n); ++k) {
          const float factor = draw.factor(drawn.word[k - i]);
          y[k] = factor == 0 ? 0 : x[k] * factor;
        }
      }
      write(args.y, at, n, y);
    }
  });
}

bool is_mine(const RopeArgs& a) {
  return is_real(a.x.dtype) && a.cosine.dtype == DType::kF32 && a.sine.dtype == DType::kF32;
}
// Tokens are weights, which may be stored in fewer bits than the rows that they stand among.
bool is_mine(const PadRowsArgs& a) {
  return is_real(a.x.dtype) && is_real(a.y.dtype) && a.token.dtype != DType::kF64;
}

bool is_mine(const DropoutArgs& a) {
  return is_real(a.x.dtype) && is_real(a.y.dtype) && a.y.shape.numel() > 0;
}

}  // namespace

void fill_tokens(Kernels& table) {
  table.rope.prefer({is_mine, rope, [](const RopeArgs& a, const Stream& s) {
                       return RowBuffers::workspace(a.x, a.y, a.x.shape[2] * a.x.shape[3], s);
                     }});
  table.pad_rows.prefer({is_mine, pad_rows});
  table.dropout.prefer({is_mine, dropout});
}

}  // namespace halftone::fast
