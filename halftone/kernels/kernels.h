// A backend is a filled table of kernels. An entry answers whether it takes a problem and runs it;
// choosing one is a pure function of the problem and the table.
#pragma once

#include <cstddef>

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

template <class Args>
struct Kernel {
  bool (*supports)(const Args&) = nullptr;
  void (*launch)(const Args&, Stream) = nullptr;
  // Bytes of scratch memory for this problem on this stream (whose own workspace is not looked at);
  // null where there is none. A function of shapes and dtypes alone, so that it is known before a
  // run.
  int64_t (*workspace)(const Args&, const Stream&) = nullptr;
};

struct Kernels {
  const char* name = "";
  // What graphs should be like, for passes.
  bool strided_attention = false;    // attention takes views with a token stride
  bool wide_products = false;        // one product for several linears is faster than one for each
  bool products_apply_gelu = false;  // at no cost
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
  Kernel<Upsample2xArgs> upsample2x, upsample2x_grad;

  // Not in the reference table, for which the unfused graph is the definition.
  Kernel<FusedRowsArgs> fused_rows;
};

// Complete and plain: the reference that every other table is held to, bit for bit.
const Kernels& cpu_scalar_kernels();

// The fastest for this CPU: SIMD entries chosen by instruction set at run time where the build has
// them, scalar ones elsewhere.
const Kernels& cpu_kernels();

}  // namespace halftone
