// Fused row operations: a kernel generated for the chain (fused_source.h), compiled once.
#include <algorithm>

#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/fused_source.h"
#include "halftone/kernels/cuda/jit.h"

namespace halftone::cuda {
namespace {

// As fused_prelude.cuh has it.
constexpr int kMostInputs = 24, kMostOutputs = 16;
struct Params {
  const void* inputs[kMostInputs];
  void* outputs[kMostOutputs];
  void* scales[kMostOutputs];
  long long rows, rows_per_item;
};

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

bool supports(const FusedRowsArgs& args) {
  return args.inputs.size() <= kMostInputs && args.outputs.size() <= kMostOutputs &&
         std::all_of(args.inputs.begin(), args.inputs.end(),
                     [](const ConstView& x) { return is_float(x.dtype); });
}

void fused_rows(const FusedRowsArgs& args, Stream stream) {
  const FusedRowsAttributes& how = *args.how;
  if (how.rows == 0) return;
  std::vector<DType> types;
  for (const ConstView& input : args.inputs) types.push_back(input.dtype);
  const FusedSource source = write_fused_source(how, types);
  Context& context = context_of(stream);
  const JitKernel& jit = context.part<JitKernels>().get(source.text, "fused_rows", source.threads,
                                                        source.shared_bytes);
  Params params{};
  for (size_t i = 0; i < args.inputs.size(); ++i) params.inputs[i] = args.inputs[i].data;
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    params.outputs[i] = args.outputs[i].data;
    params.scales[i] = args.outputs[i].scales;
  }
  params.rows = how.rows;
  params.rows_per_item = std::max<int64_t>(how.rows_per_item, 1);
  // As many blocks as run at once, each with rows of its own: what rows share is read once a block.
  const int64_t at_once = int64_t{context.multiprocessors()} * jit.blocks_per_multiprocessor;
  const int64_t blocks = std::clamp<int64_t>(at_once / source.pieces, 1, how.rows);
  void* arguments[] = {&params};
  HT_CUDA(
      cudaLaunchKernel(reinterpret_cast<const void*>(jit.kernel),
                       dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(source.pieces)),
                       dim3(static_cast<unsigned>(source.threads)), arguments,
                       static_cast<size_t>(source.shared_bytes), context.stream()));
}

}  // namespace

void fill_fused(Kernels& table) {
  table.fused_rows.supports = supports;
  table.fused_rows.launch = fused_rows;
}

}  // namespace halftone::cuda
