// Convolutions and their gradients as matrix products: the values under each place of the window,
// a patch of them for each pixel of the result, are laid out as a matrix, some pixels at a time.
#include "halftone/kernels/cpu/fast/gemm.h"
#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

// How many pixels and channels are worked on together: a function of shapes alone, so that bits
// depend neither on the number of threads nor on the batch.
constexpr int64_t kPatchValues = 1 << 18;  // of a matrix of patches, which then stays in a cache
constexpr int64_t kChannels = 16;          // that a thread takes at a time

struct Geometry {
  Geometry(const Shape& x, const Shape& weight, const Shape& y, const ConvAttributes& attributes)
      : how(attributes),
        batch(x[0]),
        channels(x[1]),
        height(x[2]),
        width(x[3]),
        outputs(weight[0]),
        kernel_height(weight[2]),
        kernel_width(weight[3]),
        y_width(y[3]),
        plane(height * width),
        y_plane(y[2] * y[3]),
        taps(kernel_height * kernel_width) {}

  // Pixels of the result at a time, where a patch is of so many channels.
  int64_t pixels(int64_t of) const {
    return std::clamp<int64_t>(kPatchValues / std::max<int64_t>(of * taps, 1), 16,
                               std::max<int64_t>(y_plane, 16));
  }

  // Of the pixels [first, first + count) of the result, runs whose values under this tap exist:
  // calls fn(pixel - first, pixels, where the value of the first lies in the plane of a channel).
  template <class Fn>
  void for_each_run(int64_t tap, int64_t first, int64_t count, const Fn& fn) const {
    const int64_t u = tap / kernel_width - how.pad[0], v = tap % kernel_width - how.pad[1];
    for (int64_t p = first; p < first + count;) {
      const int64_t row = p / y_width, column = p % y_width;
      const int64_t end = std::min(y_width, column + first + count - p);  // of this row's pixels
      const int64_t from_row = row * how.stride + u;
      if (from_row >= 0 && from_row < height) {
        // Columns c with 0 <= c * stride + v < width.
        const int64_t low = v >= 0 ? 0 : (-v + how.stride - 1) / how.stride;
        const int64_t high = width - v <= 0 ? 0 : (width - v + how.stride - 1) / how.stride;
        const int64_t begin = std::max(column, low), stop = std::min(end, high);
        if (begin < stop) {
          fn(p - first + begin - column, stop - begin, from_row * width + begin * how.stride + v);
        }
      }
      p += end - column;
    }
  }

  // Patches [channels [c, c + of) and their taps, count pixels] of one item, from its planes.
  void gather(const float* x, int64_t c, int64_t of, int64_t first, int64_t count,
              float* to) const {
    for (int64_t i = 0; i < of; ++i) {
      const float* from = x + (c + i) * plane;
      for (int64_t tap = 0; tap < taps; ++tap, to += count) {
        std::fill_n(to, count, 0.0f);
        for_each_run(tap, first, count, [&](int64_t at, int64_t n, int64_t source) {
          if (how.stride == 1) {
            std::copy_n(from + source, n, to + at);
          } else {
            for (int64_t k = 0; k < n; ++k) to[at + k] = from[source + k * how.stride];
          }
        });
      }
    }
  }
  // The way back: what patches hold is added to the planes.
  void scatter(const float* from, int64_t c, int64_t of, int64_t first, int64_t count,
               float* x) const {
    for (int64_t i = 0; i < of; ++i) {
      float* to = x + (c + i) * plane;
      for (int64_t tap = 0; tap < taps; ++tap, from += count) {
        for_each_run(tap, first, count, [&](int64_t at, int64_t n, int64_t target) {
          for (int64_t k = 0; k < n; ++k) to[target + k * how.stride] += from[at + k];
        });
      }
    }
  }

  ConvAttributes how;
  int64_t batch, channels, height, width, outputs, kernel_height, kernel_width, y_width;
  int64_t plane, y_plane, taps;
};

// Scratch memory for each of the threads that share `items` pieces of work.
class Workers {
 public:
  Workers(int64_t items, const Stream& stream)
      : items_(items), threads_(stream.threads), count_(std::clamp<int64_t>(threads_, 1, items)) {}
  int64_t floats(int64_t each) const { return count_ * each; }
  int64_t packed(int64_t m, int64_t n, int64_t k) const { return count_ * packed_bytes(m, n, k); }

  // body(item, its memory)
  template <class Body>
  void run(float* memory, int64_t each, const Body& body) const {
    require_memory_for_products(threads_);
    parallel_for(threads_, count_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) {
        for (int64_t i = items_ * w / count_; i < items_ * (w + 1) / count_; ++i) {
          body(i, memory + w * each);
        }
      }
    });
  }

 private:
  int64_t items_;
  int threads_;
  int64_t count_;
};

// Results from a worker's memory.
void store(const View& y, int64_t at, int64_t n, float* values) {
  float* to = target(y, at, values);
  if (to != values) std::copy_n(values, n, to);
  write(y, at, n, values);
}

// y of one item: weight [O, C taps] times patches [C taps, pixels].
class Forward {
 public:
  Forward(const ConvArgs& args, const Stream& stream)
      : args_(args),
        g_(args.x.shape, args.weight.shape, args.y.shape, args.how),
        pixels_(g_.pixels(g_.channels)),
        per_item_(pieces_of(g_.y_plane, pixels_)),
        workers_(g_.batch * per_item_, stream) {}

  int64_t workspace() const {
    return Floats::workspace(args_.x) + Floats::workspace(args_.weight) +
           Floats::workspace(args_.bias) + float_workspace({workers_.floats(each())});
  }
  int64_t library() const { return workers_.packed(g_.outputs, pixels_, g_.channels * g_.taps); }
  void run(Stream stream) const {
    Workspace workspace(stream);
    const Floats x(args_.x, workspace), weight(args_.weight, workspace),
        bias(args_.bias, workspace);
    const int64_t k = g_.channels * g_.taps;
    workers_.run(workspace.floats(workers_.floats(each())), each(), [&](int64_t i, float* memory) {
      const int64_t b = i / per_item_, first = i % per_item_ * pixels_;
      const int64_t count = std::min(pixels_, g_.y_plane - first);
      g_.gather(x.data() + b * g_.channels * g_.plane, 0, g_.channels, first, count, memory);
      float* y = memory + k * pixels_;
      gemm({g_.outputs, count, k, weight.data(), k, memory, count, y, count, false, false});
      for (int64_t o = 0; o < g_.outputs; ++o) {
        const int64_t at = (b * g_.outputs + o) * g_.y_plane + first;
        float* row = y + o * count;
        if (bias.data() != nullptr) affine(row, {1, bias[o]}, count, row);
        store(args_.y, at, count, row);
      }
    });
  }

 private:
  int64_t each() const { return (g_.channels * g_.taps + g_.outputs) * pixels_; }

  const ConvArgs& args_;
  Geometry g_;
  int64_t pixels_, per_item_;
  Workers workers_;
};

// dx of some channels of one item: their columns of the weight, transposed, times dy, put where the
// patches were taken from.
class InputGradient {
 public:
  InputGradient(const ConvInputGradArgs& args, const Stream& stream)
      : args_(args),
        g_(args.dx.shape, args.weight.shape, args.dy.shape, args.how),
        pixels_(g_.pixels(kChannels)),
        per_item_(pieces_of(g_.channels, kChannels)),
        workers_(g_.batch * per_item_, stream) {}

  int64_t workspace() const {
    return Floats::workspace(args_.dy) + Floats::workspace(args_.weight) +
           float_workspace({workers_.floats(each())});
  }
  int64_t library() const { return workers_.packed(kChannels * g_.taps, pixels_, g_.outputs); }
  void run(Stream stream) const {
    Workspace workspace(stream);
    const Floats dy(args_.dy, workspace), weight(args_.weight, workspace);
    const int64_t k = g_.channels * g_.taps;
    workers_.run(workspace.floats(workers_.floats(each())), each(), [&](int64_t i, float* memory) {
      const int64_t b = i / per_item_, c = i % per_item_ * kChannels;
      const int64_t of = std::min(kChannels, g_.channels - c);
      float* dx = memory + kChannels * g_.taps * pixels_;
      std::fill_n(dx, of * g_.plane, 0.0f);
      for (int64_t first = 0; first < g_.y_plane; first += pixels_) {
        const int64_t count = std::min(pixels_, g_.y_plane - first);
        gemm({of * g_.taps, count, g_.outputs, weight.data() + c * g_.taps, k,
              dy.data() + b * g_.outputs * g_.y_plane + first, g_.y_plane, memory, count, true,
              false});
        g_.scatter(memory, 0, of, first, count, dx);
      }
      const int64_t at = (b * g_.channels + c) * g_.plane, n = of * g_.plane;
      store(args_.dx, at, n, dx);
    });
  }

 private:
  int64_t each() const { return kChannels * (g_.taps * pixels_ + g_.plane); }

  const ConvInputGradArgs& args_;
  Geometry g_;
  int64_t pixels_, per_item_;
  Workers workers_;
};

// dweight of some channels: dy times their patches, transposed, summed over the batch.
class WeightGradient {
 public:
  WeightGradient(const ConvWeightGradArgs& args, const Stream& stream)
      : args_(args),
        g_(args.x.shape, args.dweight.shape, args.dy.shape, args.how),
        pixels_(g_.pixels(kChannels)),
        workers_(pieces_of(g_.channels, kChannels), stream) {}

  int64_t workspace() const {
    return Floats::workspace(args_.dy) + Floats::workspace(args_.x) +
           float_workspace({workers_.floats(each())});
  }
  int64_t library() const { return workers_.packed(g_.outputs, kChannels * g_.taps, pixels_); }
  void run(Stream stream) const {
    Workspace workspace(stream);
    const Floats dy(args_.dy, workspace), x(args_.x, workspace);
    const int64_t k = g_.channels * g_.taps;
    workers_.run(workspace.floats(workers_.floats(each())), each(), [&](int64_t i, float* memory) {
      const int64_t c = i * kChannels, of = std::min(kChannels, g_.channels - c), n = of * g_.taps;
      float* sums = memory + kChannels * g_.taps * pixels_;
      std::fill_n(sums, g_.outputs * n, 0.0f);
      for (int64_t b = 0; b < g_.batch; ++b) {
        for (int64_t first = 0; first < g_.y_plane; first += pixels_) {
          const int64_t count = std::min(pixels_, g_.y_plane - first);
          g_.gather(x.data() + b * g_.channels * g_.plane, c, of, first, count, memory);
          gemm({g_.outputs, n, count, dy.data() + b * g_.outputs * g_.y_plane + first, g_.y_plane,
                memory, count, sums, n, false, true, 1, 1});
        }
      }
      for (int64_t o = 0; o < g_.outputs; ++o) {
        const int64_t at = o * k + c * g_.taps;
        float* row = sums + o * n;
        store(args_.dweight, at, n, row);
      }
    });
  }

 private:
  int64_t each() const { return kChannels * g_.taps * (pixels_ + g_.outputs); }

  const ConvWeightGradArgs& args_;
  Geometry g_;
  int64_t pixels_;
  Workers workers_;
};

bool is_plain_floats(const ConstView& x) {
  return x.data == nullptr || (x.dtype != DType::kF64 && x.format == nullptr);
}
bool is_in_order(const ConvAttributes& how, const ConstView& weight) {
  return !how.channels_last && !weight.channels_last;
}
bool is_product(const ConvArgs& a) {
  return is_in_order(a.how, a.weight) && a.shift.data == nullptr && a.addend.data == nullptr &&
         is_plain_floats(a.x) && is_plain_floats(a.weight) && is_plain_floats(a.bias) &&
         is_real(a.y.dtype) && a.y.shape.numel() > 0;
}
bool is_product(const ConvInputGradArgs& a) {
  return is_in_order(a.how, a.weight) && is_plain_floats(a.dy) && is_plain_floats(a.weight) &&
         is_real(a.dx.dtype) && a.dx.shape.numel() > 0;
}
bool is_product(const ConvWeightGradArgs& a) {
  return !a.how.channels_last && is_plain_floats(a.dy) && is_plain_floats(a.x) &&
         is_real(a.dweight.dtype) && a.dweight.shape.numel() > 0;
}

template <class Way, class Args>
KernelEntry<Args> entry() {
  return {is_product,
          [](const Args& a, Stream s) { Way(a, s).run(s); },
          [](const Args& a, const Stream& s) { return Way(a, s).workspace(); },
          /*reference=*/false,
          /*prepare=*/nullptr,
          [](const Args& a, const Stream& s) { return Way(a, s).library(); }};
}

}  // namespace

void fill_convolution_products(Kernels& table) {
  table.conv2d.prefer(entry<Forward, ConvArgs>());
  table.conv2d_input_grad.prefer(entry<InputGradient, ConvInputGradArgs>());
  table.conv2d_weight_grad.prefer(entry<WeightGradient, ConvWeightGradArgs>());
}

}  // namespace halftone::fast
