// A backend is a filled table of kernels, each a list of ways to solve a problem. Choosing one is a
// pure function of the problem and the table.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include "halftone/kernels/device.h"
#include "halftone/kernels/fused_args.h"
#include "halftone/kernels/op_args.h"
#include "halftone/kernels/quantize_args.h"

namespace halftone {

// Where and how wide a kernel runs, and the scratch memory that it may use meanwhile.
struct Stream {
  int threads = 1;                  // CPU threads
  DeviceContext* device = nullptr;  // where it is not the CPU
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Slow work that kernels want done before they are launched, each piece on any thread, at the same
// time as others: compiling, say. One that fails has done nothing; the launch will say why.
using PreparationList = std::vector<std::function<void()>>;

// One way to solve a problem.
template <class Args>
struct KernelEntry {
  bool (*supports)(const Args&) = nullptr;
  void (*launch)(const Args&, Stream) = nullptr;
  // Bytes of scratch memory for this problem on this stream (whose own workspace is not looked at);
  // null where there is none. A function of shapes and dtypes alone, so that it is known before a
  // run.
  int64_t (*workspace)(const Args&, const Stream&) = nullptr;
  bool reference = false;  // plain and slow: what others are held to
  // Adds what there is to prepare for this problem; null where that is nothing.
  void (*prepare)(const Args&, const Stream&, PreparationList&) = nullptr;
  // Bytes that libraries take for themselves meanwhile, at most; null where they take none.
  int64_t (*library)(const Args&, const Stream&) = nullptr;
};

// The ways that a backend has, the best first: the first that supports a problem solves it.
template <class Args>
class Kernel {
 public:
  Kernel() = default;
  Kernel(const KernelEntry<Args>& only) : entries_{only}, count_(1) {}  // NOLINT: one is a table
  Kernel(bool (*takes)(const Args&), void (*run)(const Args&, Stream),
         int64_t (*scratch)(const Args&, const Stream&) = nullptr)
      : Kernel(KernelEntry<Args>{takes, run, scratch}) {}

  // Before those that are there.
  void prefer(const KernelEntry<Args>& entry) {
    for (size_t i = count_; i > 0; --i) entries_[i] = entries_[i - 1];
    entries_[0] = entry;
    ++count_;
  }
  const KernelEntry<Args>* choose(const Args& args) const {
    for (size_t i = 0; i < count_; ++i) {
      if (entries_[i].supports(args)) return &entries_[i];
    }
    return nullptr;
  }
  // Whether a reference stands in for a faster way that there is, which does not take this.
  bool stands_in(const Args& args) const {
    const KernelEntry<Args>* chosen = choose(args);
    return chosen != nullptr && chosen->reference && !entries_[0].reference;
  }

  const KernelEntry<Args>& first() const { return entries_[0]; }
  bool supports(const Args& args) const { return choose(args) != nullptr; }
  // Both of a problem that is supported.
  void launch(const Args& args, Stream stream) const { choose(args)->launch(args, stream); }
  int64_t workspace(const Args& args, const Stream& stream) const {
    const KernelEntry<Args>* chosen = choose(args);
    return chosen->workspace == nullptr ? 0 : chosen->workspace(args, stream);
  }
  int64_t library(const Args& args, const Stream& stream) const {
    const KernelEntry<Args>* chosen = choose(args);
    return chosen->library == nullptr ? 0 : chosen->library(args, stream);
  }

 private:
  static constexpr size_t kMost = 4;
  std::array<KernelEntry<Args>, kMost> entries_{};
  size_t count_ = 0;
};

struct Kernels {
  const char* name = "";
  // What graphs should be like, for passes.
  bool strided_attention = false;     // attention takes views with a token stride
  bool attention_statistics = false;  // attention can hand its statistics to its gradient
  bool wide_products = false;         // one product for several linears is faster than one for each
  bool products_apply_gelu = false;   // at no cost
  bool products_add = false;          // what is there already, at less than a sum's cost
  bool channels_last = false;         // convolutions and group norms are faster so
  FusedLimits fused_limits;
  Kernel<AmaxArgs> amax;
  Kernel<QuantizeArgs> quantize;
  Kernel<DequantizeArgs> dequantize;

  Kernel<BinaryArgs> binary;
  Kernel<AffineArgs> affine;
  Kernel<UnaryArgs> unary;
  Kernel<SiluMulArgs> silu_mul;
  Kernel<SumToArgs> sum_to;
  Kernel<CopyArgs> copy;
  Kernel<FillArgs> fill;
  Kernel<MatMulArgs> matmul;
  Kernel<LinearInputGradArgs> linear_input_grad;
  Kernel<ConvArgs> conv2d;
  Kernel<ConvInputGradArgs> conv2d_input_grad;
  Kernel<ConvWeightGradArgs> conv2d_weight_grad;
  Kernel<NormArgs> rms_norm, layer_norm, group_norm;
  Kernel<NormGradArgs> rms_norm_grad, layer_norm_grad, group_norm_grad;
  Kernel<RopeArgs> rope;
  Kernel<AttentionArgs> attention;
  Kernel<AttentionGradArgs> attention_grad;
  Kernel<EmbeddingArgs> embedding;
  Kernel<EmbeddingGradArgs> embedding_grad;
  Kernel<PadRowsArgs> pad_rows;
  Kernel<PadRowsGradArgs> pad_rows_grad;
  Kernel<GaussianArgs> gaussian;
  Kernel<DropoutArgs> dropout;
  Kernel<AdamWArgs> adamw;
  Kernel<Upsample2xArgs> upsample2x, upsample2x_grad;

  // Not in the reference table, for which the unfused graph is the definition.
  Kernel<FusedRowsArgs> fused_rows;
};

// Complete and plain: the reference that every other table is held to, bit for bit.
const Kernels& cpu_scalar_kernels();

// The fastest for this CPU: SIMD entries chosen by instruction set at run time where the build has
// them, scalar ones elsewhere.
const Kernels& cpu_kernels();

// What libraries behind the CPU's kernels take once and keep: generated code above all. As
// measured.
int64_t library_code_bytes();

}  // namespace halftone
