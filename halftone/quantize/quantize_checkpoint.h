// Quantizes a checkpoint of one or several files into a folder, file by file.
#pragma once

#include "halftone/io/checkpoint.h"
#include "halftone/io/dialect.h"
#include "halftone/quantize/quantize_file.h"

namespace halftone {

// Files keep their names and sub-folders; where there are several, an index is written beside them.
// The report is of all of them together. Converting nothing is an Error.
FileQuantizeReport quantize_checkpoint(const Checkpoint& input, const std::filesystem::path& folder,
                                       const FileQuantizeOptions& options, const Kernels& kernels,
                                       Stream stream, const ProgressFn& progress);

// Rewrites what quantize_checkpoint wrote to `folder` in another dialect, its index included.
void convert_checkpoint(const Checkpoint& input, const std::filesystem::path& folder, Dialect to,
                        const ProgressFn& progress);

// A model's folder without the checkpoint in `part`: its other files and folders, copied.
void copy_model_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                       const std::string& part, const ProgressFn& progress);

}  // namespace halftone
