#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

using Strides = std::array<int64_t, Shape::kMaxRank>;

Strides broadcast_strides(const Shape& shape, const Shape& like) {
  Strides strides{};
  int64_t stride = 1;
  for (int i = 1; i <= shape.rank(); ++i) {
    if (shape[-i] != 1) strides[like.rank() - i] = stride;
    stride *= shape[-i];
  }
  return strides;
}

// An iteration space over two operands, with neighbouring dimensions that step alike merged.
struct Space {
  int rank = 0;
  std::array<int64_t, Shape::kMaxRank> dims{};
  Strides a{}, b{};

  void add(int64_t dim, int64_t stride_a, int64_t stride_b) {
    if (dim == 1) return;
    if (rank > 0 && a[rank - 1] == stride_a * dim && b[rank - 1] == stride_b * dim) {
      dims[rank - 1] *= dim;
    } else {
      dims[rank++] = dim;
    }
    a[rank - 1] = stride_a;
    b[rank - 1] = stride_b;
  }
  int64_t inner() const { return rank == 0 ? 1 : dims[rank - 1]; }
  int64_t outer() const {
    int64_t count = 1;
    for (int d = 0; d + 1 < rank; ++d) count *= dims[d];
    return count;
  }
  // Offsets of both operands at the start of the inner run with this index.
  std::pair<int64_t, int64_t> offsets(int64_t index) const {
    int64_t offset_a = 0, offset_b = 0;
    for (int d = rank - 2; d >= 0; --d) {
      offset_a += index % dims[d] * a[d];
      offset_b += index % dims[d] * b[d];
      index /= dims[d];
    }
    return {offset_a, offset_b};
  }
  int64_t inner_a() const { return rank == 0 ? 0 : a[rank - 1]; }
  int64_t inner_b() const { return rank == 0 ? 0 : b[rank - 1]; }
};

void binary(const BinaryArgs& args, Stream stream) {
  const Shape& shape = args.y.shape;
  if (shape.numel() == 0) return;
  const Strides a = broadcast_strides(args.a.shape, shape),
                b = broadcast_strides(args.b.shape, shape);
  Space space;
  for (int d = 0; d < shape.rank(); ++d) space.add(shape[d], a[d], b[d]);
  const int64_t n = space.inner(), step_a = space.inner_a(), step_b = space.inner_b();
  const bool sum = args.function == BinaryFunction::kAdd;
  const auto run = [&](int64_t offset_a, int64_t offset_b, int64_t offset, int64_t count) {
    float buffer_a[kPiece], buffer_b[kPiece], buffer_y[kPiece];
    const float* x = read(args.a, offset_a, step_a == 0 ? 1 : count, buffer_a);
    const float* z = read(args.b, offset_b, step_b == 0 ? 1 : count, buffer_b);
    float* y = target(args.y, offset, buffer_y);
    if (step_a != 0 && step_b != 0) {
      sum ? add(x, z, count, y) : multiply(x, z, count, y);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        const float u = x[step_a == 0 ? 0 : i], v = z[step_b == 0 ? 0 : i];
        y[i] = sum ? u + v : u * v;
      }
    }
    write(args.y, offset, count, y);
  };
  // A long inner run is cut, so that threads share it.
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  for_rows(stream, space.outer() * pieces, std::min(n, kPiece), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t row = p / pieces, at = p % pieces * kPiece;
      const auto [offset_a, offset_b] = space.offsets(row);
      run(offset_a + at * step_a, offset_b + at * step_b, row * n + at, std::min(kPiece, n - at));
    }
  });
}

// y = f(x), piece by piece: fn(x, count, y).
template <class Fn>
void map(const ConstView& x, const View& y, Stream stream, const Fn& fn) {
  const int64_t n = y.shape.numel();
  for_rows(stream, (n + kPiece - 1) / kPiece, kPiece, [&](int64_t begin, int64_t end) {
    float buffer_x[kPiece], buffer_y[kPiece];
    for (int64_t p = begin; p < end; ++p) {
      const int64_t at = p * kPiece, count = std::min(kPiece, n - at);
      const float* in = read(x, at, count, buffer_x);
      float* out = target(y, at, buffer_y);
      fn(in, count, out);
      write(y, at, count, out);
    }
  });
}

void map_affine(const AffineArgs& args, Stream stream) {
  map(args.x, args.y, stream,
      [&](const float* x, int64_t n, float* y) { affine(x, args.how, n, y); });
}

void map_unary(const UnaryArgs& args, Stream stream) {
  map(args.x, args.y, stream,
      [&](const float* x, int64_t n, float* y) { apply(args.how.function, x, n, y); });
}

void map_silu_mul(const SiluMulArgs& args, Stream stream) {
  const int64_t n = args.y.shape.numel();
  for_rows(stream, (n + kPiece - 1) / kPiece, kPiece, [&](int64_t begin, int64_t end) {
    float buffer_g[kPiece], buffer_u[kPiece], buffer_y[kPiece];
    for (int64_t p = begin; p < end; ++p) {
      const int64_t at = p * kPiece, count = std::min(kPiece, n - at);
      const float* gate = read(args.gate, at, count, buffer_g);
      const float* up = read(args.up, at, count, buffer_u);
      float* y = target(args.y, at, buffer_y);
      silu_mul(gate, up, count, y);
      write(args.y, at, count, y);
    }
  });
}

template <class From, class To>
To convert(From x) {
  if constexpr (std::is_same_v<From, To>) {
    return x;
  } else if constexpr (std::is_same_v<To, bf16>) {
    return to_bf16(to_float(x));
  } else {
    return to_float(x);
  }
}

void copy_run(const float* x, int64_t n, float* y) { std::copy_n(x, n, y); }
void copy_run(const bf16* x, int64_t n, bf16* y) { std::copy_n(x, n, y); }
void copy_run(const float* x, int64_t n, bf16* y) { narrow(x, n, y); }
void copy_run(const bf16* x, int64_t n, float* y) { widen(x, n, y); }

template <class From, class To>
void copy_as(const CopyArgs& args, Stream stream) {
  Space space;
  for (int d = 0; d < args.rank; ++d) {
    if (args.dims[d] == 0) return;
    space.add(args.dims[d], args.x_strides[d], args.y_strides[d]);
  }
  const int64_t n = space.inner(), step_x = space.inner_a(), step_y = space.inner_b();
  for_rows(stream, space.outer(), n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto [offset_x, offset_y] = space.offsets(row);
      const From* x = static_cast<const From*>(args.x) + offset_x;
      To* y = static_cast<To*>(args.y) + offset_y;
      if (step_x == 1 && step_y == 1) {
        copy_run(x, n, y);
      } else {
        for (int64_t i = 0; i < n; ++i) y[i * step_y] = convert<From, To>(x[i * step_x]);
      }
    }
  });
}

void copy(const CopyArgs& args, Stream stream) {
  const bool from_float = args.x_dtype == DType::kF32, to_f32 = args.y_dtype == DType::kF32;
  if (from_float) {
    to_f32 ? copy_as<float, float>(args, stream) : copy_as<float, bf16>(args, stream);
  } else {
    to_f32 ? copy_as<bf16, float>(args, stream) : copy_as<bf16, bf16>(args, stream);
  }
}

// Channels of a pixel lie together.
void upsample_pixels(const Upsample2xArgs& args, Stream stream) {
  const int64_t width = args.x.shape[2], channels = args.x.shape[3];
  const int64_t rows = args.x.shape[0] * args.x.shape[1];
  for_rows(stream, rows, 4 * width * channels, [&](int64_t begin, int64_t end) {
    float in[kPiece];
    for (int64_t pixel = begin * width; pixel < end * width; ++pixel) {
      const int64_t row = pixel / width, column = pixel % width;
      for (int64_t c = 0; c < channels; c += kPiece) {
        const int64_t n = std::min(kPiece, channels - c);
        const float* x = read(args.x, pixel * channels + c, n, in);
        for (int64_t i = 0; i < 4; ++i) {
          const int64_t to = (2 * row + i / 2) * 2 * width + 2 * column + i % 2;
          float* y = target(args.y, to * channels + c, in);
          if (y != x) std::copy_n(x, n, y);
          write(args.y, to * channels + c, n, y);
        }
      }
    }
  });
}

void upsample2x(const Upsample2xArgs& args, Stream stream) {
  if (args.how.channels_last) return upsample_pixels(args, stream);
  const int64_t width = args.x.shape[3];
  const int64_t rows = args.x.shape[0] * args.x.shape[1] * args.x.shape[2];
  for_rows(stream, rows, 4 * width, [&](int64_t begin, int64_t end) {
    float in[kPiece], out[2 * kPiece];
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t first = 0; first < width; first += kPiece) {
        const int64_t n = std::min(kPiece, width - first);
        const float* x = read(args.x, r * width + first, n, in);
        for (int64_t i = 0; i < n; ++i) out[2 * i] = out[2 * i + 1] = x[i];
        for (int64_t twice = 0; twice < 2; ++twice) {
          const int64_t at = (2 * r + twice) * 2 * width + 2 * first;
          float* y = target(args.y, at, out);
          if (y != out) std::copy_n(out, 2 * n, y);
          write(args.y, at, 2 * n, out);
        }
      }
    }
  });
}

void fill(const FillArgs& args, Stream stream) {
  const auto value = static_cast<float>(args.value);
  parallel_for(
      stream.threads, args.y.shape.numel(), kValuesPerThread, [&](int64_t begin, int64_t end) {
        if (args.y.dtype == DType::kF32) {
          std::fill_n(static_cast<float*>(args.y.data) + begin, end - begin, value);
        } else {
          std::fill_n(static_cast<bf16*>(args.y.data) + begin, end - begin, to_bf16(value));
        }
      });
}

}  // namespace

void fill_elementwise(Kernels& table) {
  // Other dtypes (F64 in tests) stay with the reference.
  table.binary.prefer({[](const BinaryArgs& a) {
                         return is_real(a.a.dtype) && is_real(a.b.dtype) && is_real(a.y.dtype);
                       },
                       binary});
  table.fill.prefer({[](const FillArgs& a) { return is_real(a.y.dtype); }, fill});
  table.affine.prefer({[](const AffineArgs& a) { return is_real(a.x.dtype); }, map_affine});
  table.unary.prefer({[](const UnaryArgs& a) { return is_real(a.x.dtype); }, map_unary});
  table.silu_mul.prefer(
      {[](const SiluMulArgs& a) { return is_real(a.gate.dtype) && is_real(a.up.dtype); },
       map_silu_mul});
  table.copy.prefer(
      {[](const CopyArgs& a) { return is_real(a.x_dtype) && is_real(a.y_dtype); }, copy});
  table.upsample2x.prefer({[](const Upsample2xArgs& a) { return is_real(a.x.dtype); }, upsample2x});
}

}  // namespace halftone::fast
