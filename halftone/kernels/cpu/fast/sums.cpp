// Sums over some dimensions, what a broadcast's gradient is. Every result is summed by one thread,
// in double and in one order.
#include <vector>

#include "halftone/kernels/cpu/fast/norm_rows.h"
#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

// Neighbouring dimensions that are all kept or all summed, as one.
struct Dim {
  int64_t size = 1, stride = 1;  // of x
  bool kept = false;
};

std::vector<Dim> collapsed(const Shape& x, const Shape& y) {
  std::vector<Dim> dims;  // from the last one on
  int64_t stride = 1;
  for (int i = 1; i <= x.rank(); ++i) {
    const bool kept = i <= y.rank() && y[-i] == x[-i];
    const int64_t size = x[-i];
    if (size != 1) {
      if (!dims.empty() && dims.back().kept == kept) {
        dims.back().size *= size;
      } else {
        dims.push_back({size, stride, kept});
      }
    }
    stride *= size;
  }
  return dims;
}

// Calls body(offset) for every index of the dimensions that are summed, in order.
template <class Body>
void each_summed(const std::vector<Dim>& dims, int64_t offset, const Body& body) {
  std::vector<const Dim*> summed;
  for (auto d = dims.rbegin(); d != dims.rend(); ++d) {
    if (!d->kept) summed.push_back(&*d);
  }
  std::vector<int64_t> index(summed.size(), 0);
  while (true) {
    body(offset);
    size_t at = summed.size();
    while (at > 0) {
      --at;
      offset += summed[at]->stride;
      if (++index[at] < summed[at]->size) break;
      offset -= summed[at]->stride * summed[at]->size;
      index[at] = 0;
      if (at == 0) return;
    }
    if (summed.empty()) return;
  }
}

// Where the kept index `position` lies in x.
int64_t offset_of(const std::vector<Dim>& kept, int64_t position) {
  int64_t offset = 0;
  for (const Dim& d : kept) {  // the last one first
    offset += position % d.size * d.stride;
    position /= d.size;
  }
  return offset;
}

void sum_to(const SumToArgs& args, Stream stream) {
  std::vector<Dim> dims = collapsed(args.x.shape, args.y.shape);
  if (dims.empty()) dims.push_back({1, 1, true});
  const Dim inner = dims[0];
  const std::vector<Dim> outer(dims.begin() + 1, dims.end());
  std::vector<Dim> kept;
  for (const Dim& d : outer) {
    if (d.kept) kept.push_back(d);
  }
  const int64_t columns = inner.kept ? inner.size : 1, results = args.y.shape.numel() / columns;
  const int64_t pieces = (columns + kPiece - 1) / kPiece;
  const int64_t work = args.x.shape.numel() / std::max<int64_t>(1, results * pieces);
  for_rows(stream, results * pieces, work, [&](int64_t begin, int64_t end) {
    double total[kPiece];
    float in[kPiece], out[kPiece];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t result = item / pieces, first = item % pieces * kPiece;
      const int64_t count = std::min(kPiece, columns - first);
      std::fill_n(total, count, 0.0);
      each_summed(outer, offset_of(kept, result), [&](int64_t offset) {
        if (inner.kept) {
          const float* x = read(args.x, offset + first, count, in);
          for (int64_t i = 0; i < count; ++i) total[i] += x[i];
          return;
        }
        for (int64_t i = 0; i < inner.size; i += kPiece) {
          const int64_t length = std::min(kPiece, inner.size - i);
          total[0] += row_sum(read(args.x, offset + i, length, in), length);
        }
      });
      float* y = target(args.y, result * columns + first, out);
      for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(total[i]);
      write(args.y, result * columns + first, count, y);
    }
  });
}

}  // namespace

void fill_sums(Kernels& table) {
  table.sum_to.prefer({[](const SumToArgs& a) {
                         return is_real(a.x.dtype) && is_real(a.y.dtype) && a.x.shape.numel() > 0;
                       },
                       sum_to, nullptr});
}

}  // namespace halftone::fast
