#include "halftone/nn/pictures.h"

namespace halftone::nn {

Value tokens_of(Value x) {
  return reshape(permute(x, {0, 2, 3, 1}), {x.dim(0), x.dim(2) * x.dim(3), x.dim(1)});
}

Value picture_of(Value x, int64_t height, int64_t width) {
  return permute(reshape(x, {x.dim(0), height, width, x.dim(2)}), {0, 3, 1, 2});
}

Value patchify(Value x, int64_t size) {
  const int64_t batch = x.dim(0), channels = x.dim(1);
  const int64_t rows = x.dim(2) / size, columns = x.dim(3) / size;
  const Value apart = reshape(x, {batch, channels, rows, size, columns, size});
  return reshape(permute(apart, {0, 1, 3, 5, 2, 4}),
                 {batch, channels * size * size, rows, columns});
}

Value unpatchify(Value x, int64_t size) {
  const int64_t batch = x.dim(0), channels = x.dim(1) / (size * size);
  const int64_t rows = x.dim(2), columns = x.dim(3);
  const Value apart = reshape(x, {batch, channels, size, size, rows, columns});
  return reshape(permute(apart, {0, 1, 4, 2, 5, 3}),
                 {batch, channels, rows * size, columns * size});
}

}  // namespace halftone::nn
