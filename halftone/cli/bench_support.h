// What all benchmarks share: random weights and inputs, medians.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "halftone/models/zimage/config.h"
#include "halftone/runtime/program.h"

namespace halftone::cli {

struct BenchOptions {
  std::string device = "cpu", compile = "on", family;
  std::string text_precision;  // empty: as wide as the denoiser computes
  std::vector<std::string> precisions = {"fp32", "bf16", "fp8", "fp8-tensor", "mxfp8", "nvfp4"};
  int64_t tokens = 0;  // 0: what is usual for the device
  int64_t dim = 3840, batch = 1, layers = 30;
  int runs = 0, threads = 0;             // 0: what is usual
  std::vector<int> stream_blocks = {0};  // a row each; more than there are: all
  int streamed = 0;                      // of the row that is measured
  bool json = false, profile = false;
};

using Inputs = std::map<std::string, Tensor>;

// Values of about unit variance in [-1.7, 1.7), the same for the same seed.
Tensor random_values(DType dtype, const Shape& shape, uint64_t seed, float gain);

// Matrices of unit gain, everything else near 1. Weights of one shape share their values, and here
// also their memory.
Weights random_weights(const Graph& graph, DType dtype);
Inputs random_inputs(const Graph& graph);

double median(std::vector<double> values);

// A Z-Image of another width; an Error where heads would not fit.
zimage::TransformerConfig bench_config(const BenchOptions& options);
double linear_flops(const zimage::TransformerConfig& config, int64_t tokens);
double attention_flops(const zimage::TransformerConfig& config, int64_t tokens);

// See bench_folder.cpp: a Z-Image of that size, or the model that a folder's configurations
// describe.
void bench_folder(const BenchOptions& options, const std::string& output);
void bench_folder_like(const std::string& like, const std::string& output);

// See bench_compile.cpp.
void bench_compile(const BenchOptions& options);

// On a GPU; see bench_device.cpp.
void bench_blocks_on_device(const BenchOptions& options, int64_t layers);
void bench_linear_on_device(const BenchOptions& options);
void bench_pipeline_on_device(const BenchOptions& options);
// See bench_train.cpp.
void bench_train_on_device(const BenchOptions& options, bool fp8_gradients);
void bench_lora_on_device(const BenchOptions& options, bool fp8_gradients);

// Denoisers of full size that can be measured without files: "flux.1:dev" and so on.
std::string measured_families();

}  // namespace halftone::cli
