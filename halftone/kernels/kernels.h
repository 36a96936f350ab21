// A backend is a filled table of kernels. An entry answers whether it takes a problem and runs it;
// choosing one is a pure function of the problem and the table.
#pragma once

#include "halftone/kernels/quantize_args.h"

namespace halftone {

// Where and how wide a kernel runs.
struct Stream {
  int threads = 1;  // CPU threads
};

template <class Args>
struct Kernel {
  bool (*supports)(const Args&) = nullptr;
  void (*launch)(const Args&, Stream) = nullptr;
};

struct Kernels {
  const char* name = "";
  Kernel<AmaxArgs> amax;
  Kernel<QuantizeArgs> quantize;
  Kernel<DequantizeArgs> dequantize;
};

// Complete and plain: the reference that every other table is held to, bit for bit.
const Kernels& cpu_scalar_kernels();

// The fastest for this CPU: SIMD entries chosen by instruction set at run time where the build has
// them, scalar ones elsewhere.
const Kernels& cpu_kernels();

}  // namespace halftone
