// A model's folder with its denoiser quantized as a recipe says.
#pragma once

#include <optional>

#include "halftone/quantize/quantize_model.h"

namespace halftone {

struct ModelWrite {
  const Model& model;  // the original
  std::string path;    // its folder
  std::filesystem::path output;
  Dialect dialect = Dialect::kHalftone;
  const QuantizeRecipe& recipe;
  WeightQuantizer quantizer;  // empty: the plain one
  const std::optional<Certificate>& certificate;
  std::string recipe_text;       // recipe.toml
  std::string calibration_text;  // calibration.json; empty: none
  std::function<void()> verify;  // called before the folder is believed; may throw
  int threads = 1;
};

struct ModelWritten {
  FileQuantizeReport files;
  std::vector<QuantizeReport::Kept> kept;
};

// The folder is complete, or as it was.
ModelWritten write_model(const ModelWrite& what, const ProgressFn& progress);

}  // namespace halftone
