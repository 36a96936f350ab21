// Calibration within a memory bound: the prompts are run once for everything, and again for moments
// that there was no room for. Weights are rounded as soon as their moments are complete.
#pragma once

#include "halftone/quantize/rounder.h"

namespace halftone {

struct CalibrationPasses {
  Pipeline& model;
  SchedulerConfig scheduler;
  CalibrationOptions how;  // but for moments
  std::filesystem::path partial;
  std::string fingerprint;
  std::vector<std::vector<MomentGroup>> moments;  // by pass; none: no moments are needed
  Rounder& rounder;
};

// Whom to tell what a stage of this name does; the stages follow each other.
using StageFn = std::function<ProgressFn(const std::string& name)>;

// Without moments, which the rounder has used.
Calibration calibrate(const CalibrationPasses& passes, const StageFn& stage);

}  // namespace halftone
