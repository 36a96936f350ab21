// What benchmarks measure without files: blocks of Z-Image, or a whole denoiser of any family, at
// full size.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "halftone/cli/bench_support.h"
#include "halftone/graph/graph.h"
#include "halftone/passes/quantize.h"

namespace halftone::cli {

struct Measured {
  std::string title;
  int64_t layers = 0, tokens = 0;
  double flops = 0;
  std::function<std::shared_ptr<Graph>(DType activations)> build;
  std::function<QuantizeRecipe(const Format&)> recipe;
};

// What the options name: "flux.2-klein", or "flux.2-klein:9b"; without a family so many blocks of
// Z-Image.
Measured find_measured(const BenchOptions& options, int64_t layers);

}  // namespace halftone::cli
