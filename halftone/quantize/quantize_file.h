// Quantizes the weights of one safetensors file into another: 2-D tensors called *.weight, chosen
// by patterns. Everything else is copied, and what was not converted is listed with the reason.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "halftone/base/progress.h"
#include "halftone/engine/model.h"
#include "halftone/io/safetensors_header.h"
#include "halftone/kernels/kernels.h"
#include "halftone/numerics/format.h"

namespace halftone {

// How one weight is stored and run.
struct WeightChoice {
  Format format;
  bool activations = true;  // the input is quantized, too
  std::optional<float> input_scale;
};

struct FileQuantizeOptions {
  Format format;
  std::vector<std::string> include;  // patterns of names; empty means every 2-D *.weight
  std::vector<std::string> exclude;  // wins over include
  // Instead of the three above: weights by name; others are kept. A file that holds none of them is
  // copied.
  std::optional<std::map<std::string, WeightChoice>> chosen;
  // Weights that are written in parts, by columns, under the names of cut_inputs.h. `chosen` and
  // the quantizer know the parts.
  InputCuts cuts = {};
  WeightQuantizer quantizer;  // empty: the plain one
  Metadata metadata;          // added to the file's own
};

struct FileQuantizeReport {
  struct Converted {
    std::string name;
    std::string format;
    Shape shape;
    int64_t bytes_before;
    int64_t bytes_after;    // codes and scales
    double relative_error;  // ||x - dequantized|| / ||x||
  };
  struct Kept {
    std::string name;
    std::string reason;
  };
  std::vector<Converted> converted;
  std::vector<Kept> kept;  // 2-D *.weight tensors that stay as they are
  int copied = 0;          // all tensors that were not converted
  int64_t copied_bytes = 0;
  std::vector<std::string> unmatched_patterns;  // patterns that no weight matched
  int64_t file_bytes_before = 0;
  int64_t file_bytes_after = 0;

  int64_t converted_bytes_before() const;
  int64_t converted_bytes_after() const;
  double mean_error() const;
  const Converted* worst() const;
};

// Nothing to convert, a file that is quantized already or an output that is the input are Errors.
FileQuantizeReport quantize_file(const std::filesystem::path& input,
                                 const std::filesystem::path& output,
                                 const FileQuantizeOptions& options, const Kernels& kernels,
                                 Stream stream, const ProgressFn& progress);

}  // namespace halftone
