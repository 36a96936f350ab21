#include "halftone/kernels/cuda/strided.cuh"
#include "halftone/numerics/gelu.h"

namespace halftone::cuda {
namespace {

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Mul {
  __device__ float operator()(float a, float b) const { return a * b; }
};
struct Affine {
  float scale, shift;
  __device__ float operator()(float x) const { return fmaf(x, scale, shift); }
};

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <Function kFunction>
struct Unary {
  __device__ float operator()(float x) const {
    if constexpr (kFunction == Function::kTanh) return tanhf(x);
    if constexpr (kFunction == Function::kSigmoid) return sigmoid(x);
    if constexpr (kFunction == Function::kSilu) return x * sigmoid(x);
    if constexpr (kFunction == Function::kGelu) return gelu(x);
    if constexpr (kFunction == Function::kQuickGelu) return quick_gelu(x);
    if constexpr (kFunction == Function::kErfGelu) return erf_gelu(x);
    if constexpr (kFunction == Function::kErfGeluSlope) return erf_gelu_slope(x);
    if constexpr (kFunction == Function::kSin) return sinf(x);
    if constexpr (kFunction == Function::kCos) return cosf(x);
  }
};
struct SiluMul {
  __device__ float operator()(float gate, float up) const { return gate * (sigmoid(gate) * up); }
};

// Inputs broadcast to the result.
template <int kSides>
StridedPlan<kSides> plan_of(const View& y, const ConstView* const (&inputs)[kSides - 1]) {
  StridedPlan<kSides> plan;
  plan.rank = y.shape.rank();
  for (int d = 0; d < plan.rank; ++d) plan.dims[d] = y.shape[d];
  plan.side[0] = side_of(y.data, y.dtype, packed_strides(y.shape));
  for (int i = 1; i < kSides; ++i) {
    const ConstView& x = *inputs[i - 1];
    plan.side[i] = side_of(x.data, x.dtype, broadcast_strides(x.shape, y.shape));
  }
  merge_dims(plan);
  return plan;
}

void binary(const BinaryArgs& args, Stream stream) {
  const auto plan = plan_of<3>(args.y, {&args.a, &args.b});
  if (args.function == BinaryFunction::kAdd) {
    launch_strided(plan, Add{}, stream);
  } else {
    launch_strided(plan, Mul{}, stream);
  }
}

void affine(const AffineArgs& args, Stream stream) {
  launch_strided(plan_of<2>(args.y, {&args.x}), Affine{args.how.scale, args.how.shift}, stream);
}

void unary(const UnaryArgs& args, Stream stream) {
  const auto plan = plan_of<2>(args.y, {&args.x});
  switch (args.how.function) {
    case Function::kTanh:
      return launch_strided(plan, Unary<Function::kTanh>{}, stream);
    case Function::kSigmoid:
      return launch_strided(plan, Unary<Function::kSigmoid>{}, stream);
    case Function::kSilu:
      return launch_strided(plan, Unary<Function::kSilu>{}, stream);
    case Function::kGelu:
      return launch_strided(plan, Unary<Function::kGelu>{}, stream);
    case Function::kQuickGelu:
      return launch_strided(plan, Unary<Function::kQuickGelu>{}, stream);
    case Function::kErfGelu:
      return launch_strided(plan, Unary<Function::kErfGelu>{}, stream);
    case Function::kErfGeluSlope:
      return launch_strided(plan, Unary<Function::kErfGeluSlope>{}, stream);
    case Function::kSin:
      return launch_strided(plan, Unary<Function::kSin>{}, stream);
    case Function::kCos:
      return launch_strided(plan, Unary<Function::kCos>{}, stream);
  }
}

void silu_mul(const SiluMulArgs& args, Stream stream) {
  launch_strided(plan_of<3>(args.y, {&args.gate, &args.up}), SiluMul{}, stream);
}

bool takes(const ConstView& x, const View& y) {
  return loads_as_float(x.dtype) && stores_from_float(y.dtype);
}

}  // namespace

void fill_elementwise(Kernels& table) {
  table.binary = {[](const BinaryArgs& a) { return takes(a.a, a.y) && takes(a.b, a.y); }, binary,
                  nullptr};
  table.affine = {[](const AffineArgs& a) { return takes(a.x, a.y); }, affine, nullptr};
  table.unary = {[](const UnaryArgs& a) { return takes(a.x, a.y); }, unary, nullptr};
  table.silu_mul = {[](const SiluMulArgs& a) { return takes(a.gate, a.y) && takes(a.up, a.y); },
                    silu_mul, nullptr};
  fill_adamw(table);
  fill_copies(table);
  fill_sums(table);
}

}  // namespace halftone::cuda
