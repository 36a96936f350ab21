// The certificate of a quantized model: measured against bf16, on prompts and noise that neither
// calibration nor a search has seen.
#pragma once

#include <optional>

#include "halftone/quantize/calibrate.h"
#include "halftone/quantize/parity.h"

namespace halftone {

class Certifier {
 public:
  // So many pictures of these prompts, sampled as calibration's are.
  Certifier(std::vector<std::string> prompts, int pictures, const CalibrationOptions& like,
            SchedulerConfig scheduler);

  // `model` runs in bf16 and is left with the recipe; without hashes. None where predictions are
  // not finite. The reference is run once and kept.
  std::optional<Certificate> measure(Pipeline& model, const QuantizeRecipe& recipe,
                                     const WeightQuantizer& quantizer, const ProgressFn& progress);

 private:
  ParityOptions how_;
  SchedulerConfig scheduler_;
  std::optional<ReferenceRun> reference_;
};

}  // namespace halftone
