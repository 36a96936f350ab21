// Fused row operations: a kernel generated for the chain (fused_source.h), compiled once.
#include <algorithm>

#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/fused_params.h"
#include "halftone/kernels/cuda/fused_source.h"
#include "halftone/kernels/cuda/jit.h"

namespace halftone::cuda {
namespace {

using fused::kMostInputs;
using fused::kMostOutputs;
using fused::Params;

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

bool supports(const FusedRowsArgs& args) {
  return args.how->rows < (int64_t{1} << 31) && args.inputs.size() <= kMostInputs &&
         args.outputs.size() <= kMostOutputs &&
         std::all_of(
             args.inputs.begin(), args.inputs.end(),
             [](const ConstView& x) { return is_float(x.dtype); });
}

// Kernels by what they depend on, so that a launch writes no source.
class FusedKernels {
 public:
  explicit FusedKernels(Context& context) : context_(context) {}

  struct Entry {
    FusedSource source;
    JitKernel jit;
  };
  const Entry& get(const FusedRowsArgs& args) {
    const std::string key = key_of(args);
    if (const auto found = entries_.find(key); found != entries_.end()) return found->second;
    Entry made;
    made.source = source_of(args);
    made.jit = context_.part<JitKernels>().get(made.source.text, "fused_rows", made.source.threads,
                                               made.source.shared_bytes);
    return entries_.emplace(key, std::move(made)).first->second;
  }

  void prepare(const FusedRowsArgs& args, PreparationList& work) {
    if (entries_.contains(key_of(args))) return;
    context_.part<JitKernels>().prepare(source_of(args).text, work);
  }

 private:
  static FusedSource source_of(const FusedRowsArgs& args) {
    std::vector<DType> types;
    for (const ConstView& input : args.inputs) types.push_back(input.dtype);
    return write_fused_source(*args.how, types);
  }
  // All that the source depends on, as bytes.
  static std::string key_of(const FusedRowsArgs& args) {
    std::string key;
    const auto add = [&](const auto&... values) {
      (key.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
    };
    for (size_t i = 0; i < args.inputs.size(); ++i) {
      const auto& input = args.how->inputs[i];
      add(args.inputs[i].dtype, input.source, input.length, input.begin, input.stride, input.at);
    }
    for (const RowStep& s : args.how->steps) {
      add(s.function, s.operands, s.length, s.width, s.dtype, s.output, s.affine.scale,
          s.affine.shift, s.unary.function, s.norm.eps, s.rope.layout, s.rope.inverse, s.split);
      if (s.format) {
        const Format& f = *s.format;
        add(f.element, f.scale, f.span, f.rounding, f.min_block_scale, f.static_scale, f.swizzled);
      }
    }
    return key;
  }

  Context& context_;
  std::map<std::string, Entry> entries_;
};

void fused_rows(const FusedRowsArgs& args, Stream stream) {
  const FusedRowsAttributes& how = *args.how;
  if (how.rows == 0) return;
  Context& context = context_of(stream);
  const auto& [source, jit] = context.part<FusedKernels>().get(args);
  Params params{};
  for (size_t i = 0; i < args.inputs.size(); ++i) params.inputs[i] = args.inputs[i].data;
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    params.outputs[i] = args.outputs[i].data;
    params.scales[i] = args.outputs[i].scales;
    params.global_scales[i] = args.outputs[i].global_scale;
  }
  for (const RowStep& step : how.steps) {
    if (step.static_scale > 0) params.static_scales[step.output] = step.static_scale;
  }
  params.rows = how.rows;
  params.rows_per_item = std::max<int64_t>(how.rows_per_item, 1);
  // As many blocks as run at once, each with rows of its own: what rows share is read once a block.
  const int64_t at_once = int64_t{context.multiprocessors()} * jit.blocks_per_multiprocessor;
  const int64_t blocks = std::clamp<int64_t>(at_once / source.pieces, 1, how.rows);
  void* arguments[] = {&params};
  // It waits for its inputs itself, so it may be set up while their kernel still runs.
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(source.pieces));
  config.blockDim = dim3(static_cast<unsigned>(source.threads));
  config.dynamicSmemBytes = static_cast<size_t>(source.shared_bytes);
  config.stream = context.stream();
  config.attrs = &early;
  config.numAttrs = context.capability() >= 90 ? 1 : 0;
  HT_CUDA(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(jit.kernel), arguments));
}

}  // namespace

void fill_fused(Kernels& table) {
  table.fused_rows = KernelEntry<FusedRowsArgs>{
      supports, fused_rows, nullptr, false,
      [](const FusedRowsArgs& args, const Stream& stream, PreparationList& work) {
        context_of(stream).part<FusedKernels>().prepare(args, work);
      }};
  // Each step may be an output.
  constexpr size_t kWholeRows = 8;
  table.fused_limits = {kMostOutputs, kMostInputs, kWholeRows};
}

}  // namespace halftone::cuda
