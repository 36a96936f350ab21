// What a run takes, known before its first step: memory, and room on the disk.
#pragma once

#include "halftone/training/train.h"
#include "halftone/training/train_samples.h"

namespace halftone {

// Of everything that a run does from here on. `samples` may be null.
ModelMemory plan_run(const TrainOptions& options, const LoadedModel& loaded, Trainer& trainer,
                     const TrainSamples* samples);

// An Error where the disk has no room for the result and its checkpoints: a run is not to find that
// out at its end.
void check_room(const TrainOptions& options, const LoadedModel& loaded, const Trainer& trainer);

}  // namespace halftone
