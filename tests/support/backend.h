// The backend that a test executable is built for: the same tests hold the fast CPU table and the
// CUDA table to the same references.
#pragma once

#include "halftone/passes/compile.h"
#include "halftone/runtime/program.h"

namespace halftone::test {

const Kernels& tested_kernels();
Stream tested_stream();
// Of a GPU: before main ends, while the libraries that it uses are still there.
void end_tested_device();

// Ready to run there: weights are copied to the device where there is one.
Program tested_program(const std::shared_ptr<Graph>& graph, const Weights& weights);

// What compiling does to a graph there.
std::shared_ptr<Graph> tested_compile(const Graph& graph, const CompileOptions& how = {});
// How far results of a compiled graph may be from those of the graph, relatively: 0 where they are
// the same bits.
double compile_tolerance(DType activations);
// Weights that are stored wider than BF16 are rounded to it for BF16 activations.
bool rounds_weights();
// How far a product of quantized operands may be from its exact value.
double product_tolerance(DType result);

}  // namespace halftone::test
