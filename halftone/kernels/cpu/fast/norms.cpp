#include "halftone/kernels/cpu/fast/norm_rows.h"
#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

void rms_norm(const NormArgs& args, Stream stream) {
  Workspace workspace(stream);
  const int64_t cols = args.x.shape[-1], rows = args.x.shape.numel() / cols;
  const Floats weight(args.weight, workspace);
  const RowBuffers buffers(args.x, args.y, cols, stream, workspace);
  buffers.for_rows(rows, [&](int64_t r, float* in, float* out) {
    const float* x = read(args.x, r * cols, cols, in);
    float* y = target(args.y, r * cols, out);
    rms_norm_row(x, weight.data(), args.how.eps, cols, y);
    write(args.y, r * cols, cols, y);
  });
}

void layer_norm(const NormArgs& args, Stream stream) {
  Workspace workspace(stream);
  const int64_t cols = args.x.shape[-1], rows = args.x.shape.numel() / cols;
  const RowBuffers buffers(args.x, args.y, cols, stream, workspace);
  buffers.for_rows(rows, [&](int64_t r, float* in, float* out) {
    const float* x = read(args.x, r * cols, cols, in);
    float* y = target(args.y, r * cols, out);
    layer_norm_row(x, args.how.eps, cols, y);
    write(args.y, r * cols, cols, y);
  });
}

int64_t row_norm_workspace(const NormArgs& args, const Stream& stream) {
  return Floats::workspace(args.weight) +
         RowBuffers::workspace(args.x, args.y, args.x.shape[-1], stream);
}

// A group is as large as a plane or many: it is worked through in pieces.
void group_norm(const NormArgs& args, Stream stream) {
  Workspace workspace(stream);
  const Shape& shape = args.x.shape;
  const int64_t plane = shape[2] * shape[3], channels = shape[1] / args.how.groups;
  const int64_t size = channels * plane, groups = shape[0] * args.how.groups;
  const Floats weight(args.weight, workspace), bias(args.bias, workspace);
  for_rows(stream, groups, size, [&](int64_t begin, int64_t end) {
    float in[kPiece], out[kPiece];
    for (int64_t g = begin; g < end; ++g) {
      const auto [mean, rstd] = moments(size, args.how.eps, [&, g](int64_t first, int64_t count) {
        return read(args.x, g * size + first, count, in);
      });
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t channel = g % args.how.groups * channels + c;
        const float w = weight[channel] * rstd, b = bias[channel];
        for (int64_t i = 0; i < plane; i += kPiece) {
          const int64_t at = g * size + c * plane + i, count = std::min(kPiece, plane - i);
          const float* x = read(args.x, at, count, in);
          float* y = target(args.y, at, out);
          if (rstd > kSmallest) {
            center_and_scale(x, mean, w, count, y);
            affine(y, {1, b}, count, y);
          } else {
            affine(x, {w, b - mean * w}, count, y);
          }
          write(args.y, at, count, y);
        }
      }
    }
  });
}

bool has_fast_weight(const NormArgs& a) {
  return is_real(a.x.dtype) && a.weight.dtype != DType::kF64 && a.bias.dtype != DType::kF64;
}

bool is_fast_group_norm(const NormArgs& a) {
  return has_fast_weight(a) && !a.how.channels_last && !a.how.silu;
}

}  // namespace

void fill_norms(Kernels& table) {
  table.rms_norm.prefer({has_fast_weight, rms_norm, row_norm_workspace});
  table.layer_norm.prefer(
      {[](const NormArgs& a) { return is_real(a.x.dtype); }, layer_norm, row_norm_workspace});
  table.group_norm.prefer({is_fast_group_norm, group_norm, [](const NormArgs& a, const Stream&) {
                             return Floats::workspace(a.weight) + Floats::workspace(a.bias);
                           }});
}

}  // namespace halftone::fast
