// Gradients of norms. Those of weights are sums over all rows: over blocks of a fixed number of
// rows first, then over blocks in order, so that they do not depend on the number of threads.
#include "halftone/kernels/cpu/fast/norm_rows.h"
#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

constexpr int64_t kBlock = 64;  // rows

class RowNormGrad {
 public:
  RowNormGrad(const NormGradArgs& args, const Stream& stream)
      : args_(args),
        cols_(args.x.shape[-1]),
        rows_(args.x.shape.numel() / std::max<int64_t>(cols_, 1)),
        blocks_((rows_ + kBlock - 1) / kBlock),
        threads_(std::max(stream.threads, 1)) {}

  int64_t workspace() const {
    return Floats::workspace(args_.weight) + float_workspace({threads_ * kRows * cols_}) +
           (has_weight() ? float_workspace({blocks_ * cols_}) : 0);
  }

  // row(x, dy, scratch, dx, dweight): adds to dweight, which is null where nobody asks for it.
  template <class Row>
  void run(const Stream& stream, const Row& row) const {
    Workspace workspace(stream);
    const Floats weight(args_.weight, workspace);
    float* buffers = workspace.floats(threads_ * kRows * cols_);
    float* sums = has_weight() ? workspace.floats(blocks_ * cols_) : nullptr;
    const int64_t workers = std::min<int64_t>(threads_, blocks_);
    parallel_for(stream.threads, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) {
        float* own = buffers + w * kRows * cols_;
        for (int64_t b = blocks_ * w / workers; b < blocks_ * (w + 1) / workers; ++b) {
          float* dweight = sums == nullptr ? nullptr : sums + b * cols_;
          if (dweight != nullptr) std::fill_n(dweight, cols_, 0.0f);
          for (int64_t r = b * kBlock; r < std::min(rows_, (b + 1) * kBlock); ++r) {
            const float* x = read(args_.x, r * cols_, cols_, own);
            const float* dy = read(args_.dy, r * cols_, cols_, own + cols_);
            float* dx = own + 3 * cols_;
            if (args_.dx.data != nullptr) dx = target(args_.dx, r * cols_, dx);
            row(x, dy, weight.data(), own + 2 * cols_, dx, dweight);
            if (args_.dx.data != nullptr) write(args_.dx, r * cols_, cols_, dx);
          }
        }
      }
    });
    if (sums != nullptr) add_blocks(sums, stream);
  }

  int64_t cols() const { return cols_; }

 private:
  static constexpr int64_t kRows = 4;  // x, dy, scratch, dx
  bool has_weight() const { return args_.dweight.data != nullptr; }

  void add_blocks(const float* sums, const Stream& stream) const {
    for_rows(stream, (cols_ + kPiece - 1) / kPiece, kPiece * blocks_,
             [&](int64_t begin, int64_t end) {
               double total[kPiece];
               float out[kPiece];
               for (int64_t piece = begin; piece < end; ++piece) {
                 const int64_t first = piece * kPiece, count = std::min(kPiece, cols_ - first);
                 std::fill_n(total, count, 0.0);
                 for (int64_t b = 0; b < blocks_; ++b) {
                   for (int64_t i = 0; i < count; ++i) total[i] += sums[b * cols_ + first + i];
                 }
                 float* y = target(args_.dweight, first, out);
                 for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(total[i]);
                 write(args_.dweight, first, count, y);
               }
             });
  }

  const NormGradArgs& args_;
  int64_t cols_, rows_, blocks_, threads_;
};

void rms_norm_grad(const NormGradArgs& args, Stream stream) {
  const RowNormGrad grad(args, stream);
  const int64_t n = grad.cols();
  grad.run(stream, [&](const float* x, const float* dy, const float* weight, float*, float* dx,
                       float* dweight) {
    const float r = rms_norm_grad_row(dy, x, weight, args.how.eps, n, dx);
    if (dweight == nullptr) return;
    for (int64_t i = 0; i < n; ++i) dweight[i] += dy[i] * (x[i] * r);
  });
}

// z = (x - mean) r: dx = r (dy - mean(dy) - z mean(dy z))
void layer_norm_grad(const NormGradArgs& args, Stream stream) {
  const RowNormGrad grad(args, stream);
  const int64_t n = grad.cols();
  grad.run(stream, [&](const float* x, const float* dy, const float*, float* z, float* dx, float*) {
    const auto [mean, rstd] =
        moments(n, args.how.eps, [x](int64_t begin, int64_t) { return x + begin; });
    layer_norm_row(x, args.how.eps, n, z);
    const double count = static_cast<double>(n);
    const auto even = static_cast<float>(row_sum(dy, n) / count);
    const auto along = static_cast<float>(row_dot(dy, z, n) / count);
    const float r = rstd;
    for (int64_t i = 0; i < n; ++i) dx[i] = r * (dy[i] - even - z[i] * along);
  });
}

// A group of channels of one picture; weights' sums are kept by picture and channel until all are
// there.
void group_norm_grad(const NormGradArgs& args, Stream stream) {
  Workspace workspace(stream);
  const Shape& shape = args.x.shape;
  const int64_t plane = shape[2] * shape[3], channels = shape[1] / args.how.groups;
  const int64_t size = channels * plane, groups = shape[0] * args.how.groups;
  const Floats weight(args.weight, workspace);
  float* dweight = workspace.floats(shape[0] * shape[1]);
  float* dbias = workspace.floats(shape[0] * shape[1]);
  for_rows(stream, groups, size, [&](int64_t begin, int64_t end) {
    float in[kPiece], other[kPiece], out[kPiece];
    const auto each_piece = [&](int64_t g, const auto& body) {  // body(channel, x, dy, at, count)
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t i = 0; i < plane; i += kPiece) {
          const int64_t at = g * size + c * plane + i, count = std::min(kPiece, plane - i);
          body(c, read(args.x, at, count, in), read(args.dy, at, count, other), at, count);
        }
      }
    };
    for (int64_t g = begin; g < end; ++g) {
      const int64_t item = g / args.how.groups, first = g % args.how.groups * channels;
      const auto [mean, rstd] = moments(size, args.how.eps, [&, g](int64_t from, int64_t count) {
        return read(args.x, g * size + from, count, in);
      });
      const float center = mean, r = rstd;
      float* dw = dweight + item * shape[1] + first;
      float* db = dbias + item * shape[1] + first;
      std::fill_n(dw, channels, 0.0f);
      std::fill_n(db, channels, 0.0f);
      double even = 0, along = 0;
      each_piece(g, [&](int64_t c, const float* x, const float* dy, int64_t, int64_t count) {
        center_and_scale(x, center, r, count, out);
        const double with = row_dot(dy, out, count), sum = row_sum(dy, count);
        dw[c] += static_cast<float>(with);
        db[c] += static_cast<float>(sum);
        along += with * weight[first + c];
        even += sum * weight[first + c];
      });
      if (args.dx.data == nullptr) continue;
      const auto mean_even = static_cast<float>(even / static_cast<double>(size));
      const auto mean_along = static_cast<float>(along / static_cast<double>(size));
      each_piece(g, [&](int64_t c, const float* x, const float* dy, int64_t at, int64_t count) {
        float* dx = target(args.dx, at, out);
        const float w = weight[first + c];
        for (int64_t i = 0; i < count; ++i) {
          const float z = (x[i] - center) * r;
          dx[i] = r * (dy[i] * w - mean_even - z * mean_along);
        }
        write(args.dx, at, count, dx);
      });
    }
  });
  const auto add_items = [&](const float* sums, const View& y) {
    if (y.data == nullptr) return;
    for (int64_t c = 0; c < shape[1]; ++c) {
      double total = 0;
      for (int64_t item = 0; item < shape[0]; ++item) total += sums[item * shape[1] + c];
      float value = static_cast<float>(total);
      *target(y, c, &value) = value;
      write(y, c, 1, &value);
    }
  };
  add_items(dweight, args.dweight);
  add_items(dbias, args.dbias);
}

bool is_mine(const NormGradArgs& a) {
  const auto real = [](const View& y) { return y.data == nullptr || is_real(y.dtype); };
  return is_real(a.x.dtype) && is_real(a.dy.dtype) && a.weight.dtype != DType::kF64 && real(a.dx) &&
         real(a.dweight) && real(a.dbias) && a.x.shape.numel() > 0;
}

int64_t row_workspace(const NormGradArgs& args, const Stream& stream) {
  return RowNormGrad(args, stream).workspace();
}

}  // namespace

void fill_norm_grads(Kernels& table) {
  table.rms_norm_grad.prefer({is_mine, rms_norm_grad, row_workspace});
  table.layer_norm_grad.prefer({is_mine, layer_norm_grad, row_workspace});
  const auto takes_group = [](const NormGradArgs& a) { return is_mine(a) && !a.how.channels_last; };
  table.group_norm_grad.prefer(
      {takes_group, group_norm_grad, [](const NormGradArgs& a, const Stream&) {
         const int64_t sums = a.x.shape[0] * a.x.shape[1];
         return Floats::workspace(a.weight) + float_workspace({sums, sums});
       }});
}

}  // namespace halftone::fast
