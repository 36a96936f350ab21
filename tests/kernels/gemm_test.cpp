// Our own float product, which stands in where the build has no oneDNN.
#include "halftone/kernels/cpu/fast/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/tensors.h"

namespace halftone::fast {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  float alpha, beta;
};

// op(a) is [m, k] and op(b) [k, n], each a corner of something wider.
struct Operands {
  explicit Operands(const Case& c)
      : lda((c.transpose_a ? c.m : c.k) + 3),
        ldb((c.transpose_b ? c.k : c.n) + 5),
        ldc(c.n + 2),
        a(test::gaussians(1, (c.transpose_a ? c.k : c.m) * lda)),
        b(test::gaussians(2, (c.transpose_b ? c.n : c.k) * ldb)),
        y(test::gaussians(3, c.m * ldc)) {}
  int64_t lda, ldb, ldc;
  std::vector<float> a, b, y;
};

Gemm gemm_of(const Case& c, Operands& o) {
  return {c.m,        c.n,   c.k,           o.a.data(),    o.lda,   o.b.data(), o.ldb,
          o.y.data(), o.ldc, c.transpose_a, c.transpose_b, c.alpha, c.beta};
}

TEST(OwnGemm, MultipliesEveryShapeAndOrder) {
  const int64_t sizes[][3] = {{1, 1, 1},    {6, 32, 256},   {7, 33, 257},   {5, 31, 3},
                              {97, 40, 64}, {192, 96, 512}, {13, 1025, 17}, {100, 70, 300}};
  for (const auto& s : sizes) {
    for (int order = 0; order < 4; ++order) {
      for (const auto& [alpha, beta] : {std::pair(1.0f, 0.0f), {0.5f, 1.0f}, {2.0f, -0.25f}}) {
        const Case c{s[0], s[1], s[2], order % 2 == 1, order / 2 == 1, alpha, beta};
        Operands o(c);
        const std::vector<float> before = o.y;
        own_gemm(gemm_of(c, o));
        for (int64_t i = 0; i < c.m; ++i) {
          for (int64_t j = 0; j < o.ldc; ++j) {
            const float was = before[i * o.ldc + j], is = o.y[i * o.ldc + j];
            if (j >= c.n) {
              ASSERT_EQ(is, was) << "beside the result";
              continue;
            }
            double sum = 0, size = 0;
            for (int64_t p = 0; p < c.k; ++p) {
              const double term = double{c.transpose_a ? o.a[p * o.lda + i] : o.a[i * o.lda + p]} *
                                  double{c.transpose_b ? o.b[j * o.ldb + p] : o.b[p * o.ldb + j]};
              sum += term;
              size += std::fabs(term);
            }
            const double expected = alpha * sum + beta * was;
            ASSERT_NEAR(is, expected, 1e-6 * (size + std::fabs(was)) + 1e-30)
                << c.m << "x" << c.n << "x" << c.k << " order " << order << " at " << i << "," << j;
          }
        }
      }
    }
  }
}

TEST(OwnGemm, OverwritesWhatIsNotANumber) {
  const Case c{7, 35, 300, false, true, 1, 0};
  Operands o(c);
  std::fill(o.y.begin(), o.y.end(), kNan);
  own_gemm(gemm_of(c, o));
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) ASSERT_TRUE(std::isfinite(o.y[i * o.ldc + j]));
  }
}

TEST(OwnGemm, NothingToSumIsZero) {
  float y[] = {kNan, 2, kNan, 4};
  own_gemm({2, 2, 0, nullptr, 1, nullptr, 1, y, 2});
  for (const float x : y) EXPECT_EQ(x, 0);
  float kept[] = {1, 2};
  own_gemm({1, 2, 0, nullptr, 1, nullptr, 1, kept, 2, false, false, 1, 0.5f});
  EXPECT_EQ(kept[0], 0.5f);
  EXPECT_EQ(kept[1], 1);
}

TEST(OwnGemm, NotANumberStaysInItsRowAndColumn) {
  const Case c{9, 37, 20, false, false, 1, 0};
  Operands o(c);
  o.a[4 * o.lda + 3] = kNan;
  o.b[2 * o.ldb + 36] = std::numeric_limits<float>::infinity();
  own_gemm(gemm_of(c, o));
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      EXPECT_EQ(std::isfinite(o.y[i * o.ldc + j]), i != 4 && j != 36) << i << "," << j;
    }
  }
}

// So that a row's bits depend neither on the batch nor on the number of threads.
TEST(OwnGemm, BitsOfARowDoNotDependOnWhereItLies) {
  const Case c{29, 75, 700, false, true, 1, 0};
  Operands o(c);
  own_gemm(gemm_of(c, o));
  for (int64_t i = 0; i < c.m; ++i) {
    std::vector<float> row(75);
    Gemm one = gemm_of(c, o);
    one.m = 1;
    one.a += i * o.lda;
    one.c = row.data();
    own_gemm(one);
    for (int64_t j = 0; j < c.n; ++j) ASSERT_EQ(row[j], o.y[i * o.ldc + j]) << i << "," << j;
  }
}

}  // namespace
}  // namespace halftone::fast
