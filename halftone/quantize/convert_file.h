// Rewrites a file of quantized weights in another tool's dialect. Codes and scales keep their bits;
// everything else is copied.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "halftone/base/progress.h"
#include "halftone/io/dialect.h"
#include "halftone/io/stored_weights.h"

namespace halftone {

struct FileConvertOptions {
  Dialect to = Dialect::kHalftone;
  StoredWeightOptions read;  // overrules what the input's markers say
};

struct FileConvertReport {
  struct Converted {
    std::string name, format;
    Shape shape;
    bool input_scale = false, full_precision = false;
  };
  Dialect from = Dialect::kNone;
  std::vector<Converted> converted;  // in natural order of names
  int copied = 0;                    // all other tensors
  int64_t converted_bytes = 0, copied_bytes = 0;
  int64_t file_bytes_before = 0, file_bytes_after = 0;
  std::filesystem::path config;  // written beside the output, where the dialect wants one
};

// `input` is what Checkpoint::open takes; the output is one file. A file without quantized weights,
// parts that nothing explains, weights that the dialect cannot hold and an output that is the input
// are Errors, and leave nothing behind.
FileConvertReport convert_file(const std::filesystem::path& input,
                               const std::filesystem::path& output,
                               const FileConvertOptions& options, const ProgressFn& progress);

}  // namespace halftone
