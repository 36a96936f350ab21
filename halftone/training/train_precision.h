// What a run computes in. "auto" is fp8 where the device multiplies in it, a trial on this device
// was faster than high precision, and its gradients agree; otherwise what pictures are generated
// in.
#pragma once

#include <memory>
#include <string>

#include "halftone/engine/engine.h"
#include "halftone/training/train.h"

namespace halftone {

struct PrecisionTrial {
  std::shared_ptr<const Model> model;  // in fp8; null: as it was loaded
  std::string why;
};

// For an adapter, on pictures of about this square, with gradients as the rules say.
PrecisionTrial try_fp8(const LoadedModel& loaded, const TrainRules& rules, int64_t resolution);

// Settles what "auto" is: for all processes together, and for a run that goes on as it began,
// `before` being the precision that it began in, or empty.
void choose_precision(TrainOptions& options, LoadedModel& loaded, const std::string& before,
                      Collective& processes);

// What gradients are computed in.
Choice chosen_backward(const TrainOptions& options, const LoadedModel& loaded);

}  // namespace halftone
