// Trained weights as a file: the denoiser in one piece, as `generate --model FILE --base DIR` takes
// it.
#pragma once

#include <filesystem>

#include "halftone/engine/model.h"
#include "halftone/io/safetensors_header.h"

namespace halftone {

// Values as they are stored, in BF16 or F32.
Weights stored_weights(const std::map<std::string, Tensor>& values, DType dtype);

// Those that were not trained are the model's own.
void write_weights(const std::filesystem::path& path, const Model& model,
                   const std::map<std::string, Tensor>& trained, DType dtype,
                   const Metadata& metadata);

}  // namespace halftone
