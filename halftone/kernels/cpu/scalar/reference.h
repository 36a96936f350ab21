// How the reference kernels see arrays: read as doubles, computed in double, rounded once when
// written. Slow, plain, single-threaded.
#pragma once

#include <vector>

#include "halftone/base/error.h"
#include "halftone/kernels/kernels.h"
#include "halftone/numerics/bf16.h"

namespace halftone::reference {

inline double load(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[i];
    case DType::kBF16:
      return to_float(static_cast<const bf16*>(data)[i]);
    case DType::kF16:
      return to_float(static_cast<const fp16*>(data)[i]);
    case DType::kF64:
      return static_cast<const double*>(data)[i];
    case DType::kI32:
      return static_cast<const int32_t*>(data)[i];
    default:
      HT_ASSERT(!"a dtype that kernels compute with");
      return 0;
  }
}

inline void store(void* data, DType dtype, int64_t i, double value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      return;
    case DType::kBF16:
      static_cast<bf16*>(data)[i] = to_bf16(static_cast<float>(value));
      return;
    case DType::kF64:
      static_cast<double*>(data)[i] = value;
      return;
    default:
      HT_ASSERT(!"a dtype that kernels write");
  }
}

inline std::vector<double> read(const ConstView& x) {
  if (x.data == nullptr) return {};
  std::vector<double> values(static_cast<size_t>(x.shape.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = load(x.data, x.dtype, static_cast<int64_t>(i));
  return values;
}

inline void write(const View& y, const std::vector<double>& values) {
  if (y.data == nullptr) return;
  HT_ASSERT(static_cast<int64_t>(values.size()) == y.shape.numel());
  for (size_t i = 0; i < values.size(); ++i)
    store(y.data, y.dtype, static_cast<int64_t>(i), values[i]);
}

// Rows along the last dimension.
inline int64_t row_count(const Shape& shape) {
  return shape[-1] == 0 ? 0 : shape.numel() / shape[-1];
}

void fill_quantize(Kernels& table);
void fill_elementwise(Kernels& table);
void fill_products(Kernels& table);
void fill_norms(Kernels& table);
void fill_tokens(Kernels& table);

template <class Args>
Kernel<Args> always(void (*run)(const Args&, Stream)) {
  return KernelEntry<Args>{[](const Args&) { return true; }, run, nullptr, true};
}

}  // namespace halftone::reference
