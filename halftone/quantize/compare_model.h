// Precisions of one model compared with another one of its precisions: as a report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "halftone/base/progress.h"
#include "halftone/engine/engine.h"
#include "halftone/quantize/parity_report.h"

namespace halftone {

// Errors name these fields, and those of `parity` by their own names.
struct CompareModelOptions {
  ModelSpec model;  // its precisions are not looked at; with `strict` a fallback is an Error
  // Names, or folders of quantized models, which run as they are stored.
  std::vector<std::string> precisions = {"fp8", "mxfp8", "nvfp4"};
  // Of the text encoders, beside the reference's denoiser; the reference has them as in its files.
  std::vector<std::string> text_precisions = {};
  std::string reference = "bf16";
  std::vector<float>
      caches;  // thresholds of step caches, each measured in the reference's precision
  // Width, height and steps of 0 and a guidance below 0 are the model's own, and no prompts are
  // those that calibration does not use (prompt_sets.h).
  ParityOptions parity = {.prompts = {}, .steps = 0, .guidance = -1};
  std::string scheduler;   // as in scheduler_choices(); empty: the model's
  int64_t max_memory = 0;  // bytes; 0: as much as is free
};

// A result for each of the precisions, and then of those of text, in their order, and the floor:
// the reference against itself with a disturbed input. Progress counts predictions over all of
// that; it may be empty, and may throw to cancel.
ParityReport compare_model(Engine& engine, const CompareModelOptions& options,
                           const ProgressFn& progress);

}  // namespace halftone
