// Weights as they are rounded, each once for each format: from calibration's moments, pass by pass,
// and kept in files beside the output.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "halftone/quantize/calibrate.h"
#include "halftone/quantize/moment_passes.h"
#include "halftone/quantize/recipe_file.h"
#include "halftone/quantize/rounded_weights.h"

namespace halftone {

class Rounder {
 public:
  // Rounds to nearest until compensated weights are added. Files are
  // `output`.rounded-N.safetensors.
  Rounder(const Model& model, std::filesystem::path output, int threads)
      : model_(model), output_(std::move(output)), threads_(threads) {}

  // Compensated weights in these formats, from now on. What an interrupted run has left is taken
  // over; a file that does not fit is not used, and why is returned, otherwise an empty text.
  std::string begin(RoundedLayout layout);
  // Groups that are to be rounded yet.
  std::vector<MomentGroup> left() const;
  // Rounds the weights of these groups and keeps them in a file. Progress counts weights.
  void round(const std::vector<MomentGroup>& groups, const Calibration& calibration,
             const ProgressFn& progress);

  // Empty where plain rounding is all there is to do.
  WeightQuantizer function();
  // An Error where a file has changed since it was read.
  void check_intact() const;
  void remove_files() const;

 private:
  std::filesystem::path file(int index) const;
  bool has_all(const std::string& weight) const;

  const Model& model_;
  std::filesystem::path output_;
  int threads_;
  RoundedLayout layout_;
  RoundedWeights rounded_, plain_;
  int files_ = 0;
};

}  // namespace halftone
