#include <cmath>

#include "halftone/kernels/cpu/scalar/reference.h"
#include "halftone/kernels/layouts.h"

namespace halftone::reference {
namespace {

// y = x / sqrt(mean(x^2) + eps) * w
void rms_norm(const NormArgs& args, Stream) {
  auto x = read(args.x);
  const auto w = read(args.weight);
  const int64_t cols = args.x.shape[-1];
  for (int64_t r = 0; r < row_count(args.x.shape); ++r) {
    double* row = x.data() + r * cols;
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum += row[c] * row[c];
    const double rstd = 1 / std::sqrt(sum / static_cast<double>(cols) + args.how.eps);
    for (int64_t c = 0; c < cols; ++c) row[c] *= rstd * w[c];
  }
  write(args.y, x);
}

void rms_norm_grad(const NormGradArgs& args, Stream) {
  const auto dy = read(args.dy), x = read(args.x), w = read(args.weight);
  const int64_t cols = args.x.shape[-1];
  std::vector<double> dx(x.size()), dw(static_cast<size_t>(cols), 0.0);
  for (int64_t r = 0; r < row_count(args.x.shape); ++r) {
    const double *xr = x.data() + r * cols, *dyr = dy.data() + r * cols;
    double sum = 0, dot = 0;
    for (int64_t c = 0; c < cols; ++c) {
      sum += xr[c] * xr[c];
      dot += dyr[c] * w[c] * xr[c];
    }
    const double rstd = 1 / std::sqrt(sum / static_cast<double>(cols) + args.how.eps);
    for (int64_t c = 0; c < cols; ++c) {
      dx[r * cols + c] =
          rstd * dyr[c] * w[c] - xr[c] * rstd * rstd * rstd * dot / static_cast<double>(cols);
      dw[c] += dyr[c] * xr[c] * rstd;
    }
  }
  write(args.dx, dx);
  write(args.dweight, dw);
}

struct Moments {
  double mean = 0, rstd = 0;
};

Moments moments(const double* x, int64_t n, double eps) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  const double mean = sum / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return {mean, 1 / std::sqrt(squares / static_cast<double>(n) + eps)};
}

// Gradient of z = (x - mean) * rstd given dz; writes dx.
void normalize_grad(const double* x, const double* dz, int64_t n, Moments m, double* dx) {
  double sum = 0, dot = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += dz[i];
    dot += dz[i] * (x[i] - m.mean) * m.rstd;
  }
  for (int64_t i = 0; i < n; ++i) {
    const double z = (x[i] - m.mean) * m.rstd;
    dx[i] = m.rstd * (dz[i] - (sum + z * dot) / static_cast<double>(n));
  }
}

void layer_norm(const NormArgs& args, Stream) {
  auto x = read(args.x);
  const int64_t cols = args.x.shape[-1];
  for (int64_t r = 0; r < row_count(args.x.shape); ++r) {
    double* row = x.data() + r * cols;
    const Moments m = moments(row, cols, args.how.eps);
    for (int64_t c = 0; c < cols; ++c) row[c] = (row[c] - m.mean) * m.rstd;
  }
  write(args.y, x);
}

void layer_norm_grad(const NormGradArgs& args, Stream) {
  const auto dy = read(args.dy), x = read(args.x);
  const int64_t cols = args.x.shape[-1];
  std::vector<double> dx(x.size());
  for (int64_t r = 0; r < row_count(args.x.shape); ++r) {
    const double* row = x.data() + r * cols;
    normalize_grad(row, dy.data() + r * cols, cols, moments(row, cols, args.how.eps),
                   dx.data() + r * cols);
  }
  write(args.dx, dx);
}

// Channels [C] of x [B, C, H, W] in groups that share mean and variance.
struct Groups {
  PictureLayout picture;
  int64_t count, channels, size;  // groups, channels of one, values of one
  Groups(const Shape& shape, const NormAttributes& how)
      : picture(shape, how.channels_last),
        count(picture.batch * how.groups),
        channels(picture.channels / how.groups),
        size(channels * picture.plane()) {}

  // Calls fn(value's place in its group, channel, place in memory) for a group's values.
  template <class Fn>
  void for_each(int64_t group, const Fn& fn) const {
    const int64_t of_item = picture.channels / channels, first = group % of_item * channels;
    int64_t i = 0;
    for (int64_t c = first; c < first + channels; ++c) {
      for (int64_t r = 0; r < picture.height; ++r) {
        for (int64_t column = 0; column < picture.width; ++column) {
          fn(i++, c, picture.at(group / of_item, c, r, column));
        }
      }
    }
  }
  std::vector<double> values(const std::vector<double>& x, int64_t group) const {
    std::vector<double> own(static_cast<size_t>(size));
    for_each(group, [&](int64_t i, int64_t, int64_t at) { own[i] = x[at]; });
    return own;
  }
};

double rounded(double value, DType dtype) {
  return dtype == DType::kBF16 ? to_float(to_bf16(static_cast<float>(value))) : value;
}

void group_norm(const NormArgs& args, Stream) {
  auto x = read(args.x);
  const auto w = read(args.weight), b = read(args.bias);
  const Groups groups(args.x.shape, args.how);
  for (int64_t g = 0; g < groups.count; ++g) {
    const Moments m = moments(groups.values(x, g).data(), groups.size, args.how.eps);
    groups.for_each(g, [&](int64_t, int64_t c, int64_t at) {
      x[at] = (x[at] - m.mean) * m.rstd * w[c] + b[c];
      if (!args.how.silu) return;
      const double y = rounded(x[at], args.y.dtype);
      x[at] = y / (1 + std::exp(-y));
    });
  }
  write(args.y, x);
}

void group_norm_grad(const NormGradArgs& args, Stream) {
  const auto dy = read(args.dy), x = read(args.x), w = read(args.weight);
  const Groups groups(args.x.shape, args.how);
  std::vector<double> dx(x.size()), dz(static_cast<size_t>(groups.size)), own(dz.size());
  std::vector<double> dw(w.size(), 0.0), db(w.size(), 0.0);
  for (int64_t g = 0; g < groups.count; ++g) {
    const std::vector<double> xs = groups.values(x, g);
    const Moments m = moments(xs.data(), groups.size, args.how.eps);
    groups.for_each(g, [&](int64_t i, int64_t c, int64_t at) {
      dz[i] = dy[at] * w[c];
      dw[c] += dy[at] * (x[at] - m.mean) * m.rstd;
      db[c] += dy[at];
    });
    normalize_grad(xs.data(), dz.data(), groups.size, m, own.data());
    groups.for_each(g, [&](int64_t i, int64_t, int64_t at) { dx[at] = own[i]; });
  }
  write(args.dx, dx);
  write(args.dweight, dw);
  write(args.dbias, db);
}

}  // namespace

void fill_norms(Kernels& table) {
  table.rms_norm = always(rms_norm);
  table.rms_norm_grad = always(rms_norm_grad);
  table.layer_norm = always(layer_norm);
  table.layer_norm_grad = always(layer_norm_grad);
  table.group_norm = always(group_norm);
  table.group_norm_grad = always(group_norm_grad);
}

}  // namespace halftone::reference
