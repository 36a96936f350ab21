// Weights of a component from its checkpoint, every tensor accounted for.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "halftone/graph/graph.h"
#include "halftone/io/checkpoint.h"
#include "halftone/models/stored_rows.h"
#include "halftone/passes/quantize.h"
#include "halftone/runtime/program.h"

namespace halftone {

// Where a weight lies in a file: a tensor, or some of its rows.
struct StoredAs {
  std::string name;
  StoredRows rows = {};
  bool transposed = false;  // a whole matrix whose columns are the weight's rows
  bool kernel = false;      // a matrix, stored as the kernel of a convolution of 1 x 1
};

struct WeightNames {
  // The tensor of a weight; empty means that names are the same.
  std::function<StoredAs(const std::string&)> stored_as;
  // Tensors that may be there without being used.
  std::function<bool(std::string_view)> known_unused;
};

// Binds the weights of `graphs` to the checkpoint's tensors: views of the file, in the dtype or the
// quantized format they are stored in, whatever tool wrote it (stored_weights.h). A weight that is
// missing or mis-shaped, and a tensor that no graph uses, are listed by name in one Error.
// `input_scales` gets the calibrated scales of linears' inputs, and `full_precision` the weights
// that the file asks to be computed with without rounding the input, both by the weight's name.
Weights load_weights(const Checkpoint& checkpoint, std::span<const std::shared_ptr<Graph>> graphs,
                     const WeightNames& names, std::map<std::string, float>* input_scales = nullptr,
                     std::set<std::string>* full_precision = nullptr);

// An Error that names the first weight with NaN or Inf.
void check_finite(const Weights& weights, const std::string& where, const Kernels& kernels,
                  Stream stream);

// What weights are stored in that are quantized.
std::map<std::string, QuantizeRecipe::Stored> quantized_formats(const Weights& weights);

// Converts the weights that `report` says are to be, where they are not yet.
void quantize_weights(Weights& weights, const QuantizeReport& report, const Kernels& kernels,
                      Stream stream);

}  // namespace halftone
