// Fused row operations: all steps of a row while it is in cache. The arithmetic is that of the
// separate kernels, row by row, so results are the same bits.
#include "halftone/kernels/cpu/fast/norm_rows.h"
#include "halftone/kernels/cpu/fast/rows.h"
#include "halftone/kernels/workspace.h"

namespace halftone::fast {
namespace {

// One thread's buffers and the loop over its rows.
class RowRunner {
 public:
  RowRunner(const FusedRowsArgs& args, std::byte* memory)
      : args_(args), how_(*args.how), slots_(how_.inputs.size() + how_.steps.size()) {
    Workspace workspace(Stream{1, nullptr, memory, workspace_bytes(how_)});
    for (const auto& input : how_.inputs) buffers_.push_back(workspace.floats(input.length));
    for (const RowStep& step : how_.steps) buffers_.push_back(workspace.floats(step.length));
    for (size_t i = 0; i < how_.inputs.size(); ++i) {
      if (how_.inputs[i].source == RowSource::kShared) load_input(i, 0);
    }
  }

  static int64_t workspace_bytes(const FusedRowsAttributes& how) {
    int64_t bytes = 0;
    for (const auto& input : how.inputs) bytes += float_workspace({input.length});
    for (const RowStep& step : how.steps) bytes += float_workspace({step.length});
    return bytes;
  }

  void run(int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bool new_item = row == begin || row % how_.rows_per_item == 0;
      for (size_t i = 0; i < how_.inputs.size(); ++i) {
        const RowSource source = how_.inputs[i].source;
        if (source == RowSource::kPerRow) load_input(i, row);
        if (source == RowSource::kPerItem && new_item) load_input(i, row / how_.rows_per_item);
      }
      for (size_t i = 0; i < how_.steps.size(); ++i) step(i, row);
    }
  }

 private:
  void load_input(size_t i, int64_t index) {
    const auto& input = how_.inputs[i];
    slots_[i] =
        read(args_.inputs[i], index * input.stride + input.begin, input.length, buffers_[i]);
  }

  void step(size_t index, int64_t row) {
    const RowStep& s = how_.steps[index];
    const size_t slot = how_.inputs.size() + index;
    const float *a = slots_[s.operands[0]], *b = slots_[s.operands[1]], *c = slots_[s.operands[2]];
    if (s.function == RowFunction::kQuantize) return quantize(s, a, row);
    // A result in F32 that others need is computed where it is stored.
    const View* output = s.output >= 0 ? &args_.outputs[s.output] : nullptr;
    float* y = output != nullptr ? target(*output, row * s.length, buffers_[slot]) : buffers_[slot];
    compute(s, a, b, c, y);
    if (s.dtype == DType::kBF16) round_to_bf16(y, s.length);
    if (output != nullptr) write(*output, row * s.length, s.length, y);
    slots_[slot] = y;
  }

  static void compute(const RowStep& s, const float* a, const float* b, const float* c, float* y) {
    const int64_t n = s.length;
    switch (s.function) {
      case RowFunction::kAdd:
        return add(a, b, n, y);
      case RowFunction::kMul:
        return multiply(a, b, n, y);
      case RowFunction::kAffine:
        return affine(a, s.affine, n, y);
      case RowFunction::kUnary:
        return apply(s.unary.function, a, n, y);
      case RowFunction::kSiluMul:
        return silu_mul(a, b, n, y);
      case RowFunction::kCast:
        std::copy_n(a, n, y);
        return;
      case RowFunction::kRmsNorm:
        for (int64_t i = 0; i < n; i += s.width) {
          rms_norm_row(a + i, b, s.norm.eps, s.width, y + i);
        }
        return;
      case RowFunction::kLayerNorm:
        for (int64_t i = 0; i < n; i += s.width) {
          layer_norm_row(a + i, s.norm.eps, s.width, y + i);
        }
        return;
      case RowFunction::kRmsNormGrad:
        for (int64_t i = 0; i < n; i += s.width) {
          rms_norm_grad_row(a + i, b + i, c, s.norm.eps, s.width, y + i);
        }
        return;
      case RowFunction::kRope:
        for (int64_t i = 0; i < n; i += s.width) {
          rotate(a + i, {s.rope.layout, s.rope.inverse ? -1.0f : 1.0f, b, c}, s.width, y + i);
        }
        return;
      case RowFunction::kConcat:
        std::copy_n(a, s.split, y);
        std::copy_n(b, n - s.split, y + s.split);
        return;
      case RowFunction::kQuantize:
        break;
    }
  }

  void quantize(const RowStep& s, const float* x, int64_t row) const {
    const View& y = args_.outputs[s.output];
    const Format& f = *s.format;
    QuantizeArgs args;
    args.x = {x, DType::kF32, 1, s.length, s.length};
    args.format = f;
    args.codes = static_cast<uint8_t*>(y.data) + row * f.code_bytes(s.length);
    args.scales =
        static_cast<uint8_t*>(y.scales) + row * f.scales_per_row(s.length) * f.scale_bytes();
    float same = 0;  // what spans rows is written by one of them
    if (f.static_scale) {
      args.static_scale = s.static_scale;
      if (f.global_scale) args.global_scale = row == 0 ? y.global_scale : &same;
      if (f.span == ScaleSpan::kTensor && row != 0) args.scales = &same;
    }
    cpu_kernels().quantize.launch(args, {1});
  }

  const FusedRowsArgs& args_;
  const FusedRowsAttributes& how_;
  std::vector<const float*> slots_;
  std::vector<float*> buffers_;
};

int64_t worker_bytes(const FusedRowsArgs& args) { return RowRunner::workspace_bytes(*args.how); }

void fused_rows(const FusedRowsArgs& args, Stream stream) {
  Workspace workspace(stream);
  const int64_t threads = std::max(stream.threads, 1), rows = args.how->rows;
  std::byte* memory = workspace.bytes(threads * worker_bytes(args));
  parallel_for(stream.threads, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) {
      RowRunner runner(args, memory + w * worker_bytes(args));
      runner.run(rows * w / threads, rows * (w + 1) / threads);
    }
  });
}

}  // namespace

void fill_fused(Kernels& table) {
  table.fused_rows = {[](const FusedRowsArgs&) { return true; }, fused_rows,
                      [](const FusedRowsArgs& args, const Stream& stream) {
                        return std::max(stream.threads, 1) * worker_bytes(args);
                      }};
}

}  // namespace halftone::fast
