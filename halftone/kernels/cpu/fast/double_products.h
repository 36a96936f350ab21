// Products of rows in double, for factoring matrices: what the library for products in float does
// not have.
#pragma once

#include <cstdint>

namespace halftone::fast {

// c [m, n] -= a [m, k] b^T, b [n, k]. Rows lie `stride` values apart; c overlaps neither.
struct RowProducts {
  double* c = nullptr;
  const double *a = nullptr, *b = nullptr;
  int64_t stride = 0;
  int64_t m = 0, n = 0, k = 0;
};
// On the calling thread. Each value is summed in an order that depends on k alone.
void subtract_products(const RowProducts& p);

}  // namespace halftone::fast
