// What "auto" means where something is trained: fp8 where the device multiplies in it, a trial on
// this device was faster than high precision, and its gradients agree; otherwise what pictures are
// generated in.
#pragma once

#include <memory>
#include <string>

#include "halftone/engine/engine.h"
#include "halftone/training/train_rules.h"

namespace halftone {

struct PrecisionTrial {
  std::shared_ptr<const Model> model;  // in fp8; null: as it was loaded
  std::string why;
};

// For an adapter, on pictures of about this square, with gradients as the rules say.
PrecisionTrial try_fp8(const LoadedModel& loaded, const TrainRules& rules, int64_t resolution);

// The base in fp8, without a trial: for a run that goes on.
std::shared_ptr<const Model> in_fp8(const Model& model);

}  // namespace halftone
