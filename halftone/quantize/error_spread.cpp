#include "halftone/quantize/error_spread.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/threads.h"
#include "halftone/kernels/cpu/fast/double_products.h"

namespace halftone {
namespace {

// A share of the mean diagonal that is added to it: inputs that were never seen have no moment.
constexpr double kDamping = 0.01;

// a = L L^T in place of the lower triangle; false where a is not positive definite. A block of
// columns at a time, so that most of it are products of rows.
class Cholesky {
 public:
  Cholesky(std::vector<double>& a, int64_t n, int threads)
      : a_(a.data()), n_(n), threads_(threads) {}

  bool run() {
    constexpr int64_t kBlock = 64;
    for (int64_t first = 0; first < n_; first += kBlock) {
      const int64_t end = std::min(first + kBlock, n_);
      parallel_for(threads_, end - first, 8, [&](int64_t begin, int64_t stop) {
        subtract_left(first + begin, first + stop, first, end);
      });
      for (int64_t i = first; i < end; ++i) {
        finish_row(i, first, i);
        double* row = a_ + i * n_;
        const double diagonal = row[i] - dot(row + first, row + first, i - first);
        if (!(diagonal > 0)) return false;
        row[i] = std::sqrt(diagonal);
      }
      constexpr int64_t kRows = 32;
      const int64_t pieces = (n_ - end + kRows - 1) / kRows;
      parallel_for(threads_, pieces, 1, [&](int64_t begin, int64_t stop) {
        for (int64_t piece = begin; piece < stop; ++piece) {
          const int64_t from = end + piece * kRows, to = std::min(from + kRows, n_);
          subtract_left(from, to, first, end);
          for (int64_t i = from; i < to; ++i) finish_row(i, first, end);
        }
      });
    }
    return true;
  }

 private:
  // What columns left of the block do to rows [from, to) of it.
  void subtract_left(int64_t from, int64_t to, int64_t first, int64_t end) const {
    constexpr int64_t kDepth = 512;  // so that the block's rows stay in the cache
    for (int64_t k = 0; k < first; k += kDepth) {
      fast::subtract_products({a_ + from * n_ + first, a_ + from * n_ + k, a_ + first * n_ + k, n_,
                               to - from, end - first, std::min(kDepth, first - k)});
    }
  }
  // Entries (i, first) to (i, end), once those of the rows above are final.
  void finish_row(int64_t i, int64_t first, int64_t end) const {
    double* row = a_ + i * n_;
    for (int64_t j = first; j < end; ++j) {
      const double* above = a_ + j * n_;
      row[j] = (row[j] - dot(row + first, above + first, j - first)) / above[j];
    }
  }
  static double dot(const double* a, const double* b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  }

  double* a_;
  int64_t n_;
  int threads_;
};

}  // namespace

ErrorSpread::ErrorSpread(const InputMoments& moments, int threads) {
  const int64_t n = moments.size();
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += moments.sums()[i * n + i] / static_cast<double>(n);
  if (!(mean > 0) || !std::isfinite(mean)) return;
  // Reversed, so that the ordinary factor is the one wanted: a[i][j] is entry (n-1-i, n-1-j).
  std::vector<double> a(static_cast<size_t>(n * n));
  parallel_for(threads, n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* from = moments.sums().data() + (n - 1 - i) * n;
      for (int64_t j = 0; j <= i; ++j) a[i * n + j] = from[n - 1 - j];
      a[i * n + i] += kDamping * mean;
    }
  });
  if (!Cholesky(a, n, threads).run()) return;
  size_ = n;
  const auto entry = [&](int64_t j, int64_t k) {  // of U, j < k
    const double* row = a.data() + (n - 1 - j) * n;
    return static_cast<float>(row[n - 1 - k] / a[(n - 1 - k) * (n + 1)]);
  };
  blocks_.resize(static_cast<size_t>((n + kBlock - 1) / kBlock));
  parallel_for(threads, static_cast<int64_t>(blocks_.size()), 1, [&](int64_t begin, int64_t stop) {
    for (int64_t index = begin; index < stop; ++index) {
      Block& b = blocks_[static_cast<size_t>(index)];
      b.first = index * kBlock;
      b.width = std::min(kBlock, n - b.first);
      b.after = n - b.first - b.width;
      b.own.assign(static_cast<size_t>(b.width * b.width), 0.0f);
      b.rest.resize(static_cast<size_t>(b.width * b.after));
      const int64_t end = b.first + b.width;
      for (int64_t j = 0; j < b.width; ++j) {
        for (int64_t k = j + 1; k < b.width; ++k) {
          b.own[j * b.width + k] = entry(b.first + j, b.first + k);
        }
        for (int64_t k = 0; k < b.after; ++k) {
          b.rest[j * b.after + k] = entry(b.first + j, end + k);
        }
      }
    }
  });
}

}  // namespace halftone
