// What calibration, the search and the certificate of a model run on: a recipe's prompts, the
// user's or our own.
#pragma once

#include "halftone/quantize/quantize_model.h"

namespace halftone {

// What is asked for, of a model with these habits.
Sampling sampling_of(const SamplingChoice& choice, const Sampling& usual);

struct PromptPlan {
  CalibrationOptions calibration;
  std::vector<std::string> certified;  // none where calibration has seen all that there are
  std::string note;                    // what was done otherwise than asked for; usually empty
};
PromptPlan plan_prompts(const QuantizeModelOptions& options, const Sampling& usual);

}  // namespace halftone
