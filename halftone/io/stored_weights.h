// The quantized weights of a checkpoint in any dialect: for each its format, the tensors it is made
// of and what has to be done to them, and loading it into the one layout that the engine computes
// with (quantized_tensor.h).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/io/checkpoint.h"
#include "halftone/io/dialect.h"
#include "halftone/numerics/format.h"
#include "halftone/tensor/quantized_tensor.h"

namespace halftone {

// Neither is written in a file by every tool, and a wrong guess passes every check of shapes, so
// that a person may overrule what the dialect's markers say.
enum class NibbleOrder { kAuto, kLow, kHigh };         // which of a byte's two FP4 values is first
enum class ScaleLayout { kAuto, kLinear, kSwizzled };  // of block scales
struct StoredWeightOptions {
  NibbleOrder nibbles = NibbleOrder::kAuto;
  ScaleLayout scales = ScaleLayout::kAuto;
};
std::optional<NibbleOrder> find_nibble_order(std::string_view name);  // auto, low, high
std::optional<ScaleLayout> find_scale_layout(std::string_view name);  // auto, linear, swizzled

struct StoredWeight {
  std::string name;  // of the weight, "a.b.weight", whatever its tensors are called
  Format format;
  Shape shape;          // [N, K]; where the file does not tell, padding is included
  Shape padded;         // [R, C] as stored
  int64_t padding = 1;  // R and C may be N and K rounded up to multiples of this

  // Tensors. An empty name: there is none, and the scale is 1.
  std::string codes, scales, global_scale, input_scale_tensor;

  bool swizzled = false;           // block scales lie in tiles
  bool high_nibble_first = false;  // FP4 pairs
  bool reciprocal = false;         // the global scale and the input's are stored as 1/scale
  std::optional<float> exact_global_scale;  // where the reciprocal does not give it back

  std::optional<float> input_scale;  // calibrated: amax/448 in FP8, amax/2688 in NVFP4
  // The file asks to compute with what the weight stands for, without rounding the input
  // (ComfyUI's full_precision_matrix_mult, torchao's weight-only configs).
  bool full_precision = false;
};

struct StoredWeights {
  Dialect dialect = Dialect::kNone;
  std::map<std::string, StoredWeight> weights;  // by name
  // Tensor -> weight that it is a part of. Markers of the whole file belong to no weight: "".
  std::map<std::string, std::string> consumed;
  // Tensors that look like a part of a quantized weight and that nothing above explains.
  std::vector<std::string> unexplained;

  const StoredWeight* find(const std::string& name) const;
};

// Describes every quantized weight; looks at headers, markers and input scales only. Parts that are
// missing, of another dtype or shape than the format takes, or contradict a marker are Errors that
// name file and tensor.
StoredWeights read_stored_weights(const Checkpoint& checkpoint,
                                  const StoredWeightOptions& options = {});

// An Error that names all tensors that were not explained, if there are any.
void check_explained(const StoredWeights& stored, const std::string& file);

// The weight in canonical layout: views of the file where nothing has to be changed. `shape` crops
// padding, and must be what `could_be` accepts.
QuantizedTensor load_stored(const Checkpoint& checkpoint, const StoredWeight& weight);
QuantizedTensor load_stored(const Checkpoint& checkpoint, const StoredWeight& weight,
                            const Shape& shape);
// NVFP4's global scale alone; 1 where there is none.
float stored_global_scale(const Checkpoint& checkpoint, const StoredWeight& weight);
// Whether the weight may be a matrix of this shape, padding apart.
bool could_be(const StoredWeight& weight, const Shape& shape);

}  // namespace halftone
