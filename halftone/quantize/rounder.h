// Weights as they are rounded, each once for each format.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "halftone/quantize/calibrate.h"
#include "halftone/quantize/recipe_file.h"

namespace halftone {

class Rounder {
 public:
  // `calibration` outlives it. Compensating takes a while: `cancelled` is asked before each weight,
  // and may be empty.
  Rounder(Rounding rounding, const Calibration& calibration, int threads,
          std::function<bool()> cancelled)
      : rounding_(rounding),
        calibration_(calibration),
        threads_(threads),
        cancelled_(std::move(cancelled)) {}

  // Empty where plain rounding is all there is to do.
  WeightQuantizer function();

 private:
  QuantizedTensor round(const std::string& name, const Tensor& weight, const Format& format) const;

  Rounding rounding_;
  const Calibration& calibration_;
  int threads_;
  std::function<bool()> cancelled_;
  std::map<std::pair<std::string, std::string>, QuantizedTensor> made_;  // by weight and format
};

}  // namespace halftone
