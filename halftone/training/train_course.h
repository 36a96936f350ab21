// What a run measures between its steps, and tells: losses, speed, memory, and how its gradients
// agree with those in high precision.
#pragma once

#include "halftone/training/train.h"
#include "halftone/training/train_data.h"

namespace halftone {

// The mean of the last steps, so many at most.
double recent_loss(const std::vector<TrainStep>& curve, size_t most);

class TrainCourse {
 public:
  // Goes into the result, whose curve may have begun already.
  TrainCourse(const TrainOptions& options, const LoadedModel& loaded, Trainer& trainer,
              TrainResult& result, const TrainListener& listener);

  // A step that took so long.
  void add(const TrainStep& made, double seconds);
  // What is due after this step, 0 being before the first, and is not in the result yet.
  void measure(int64_t step);
  void measure_memory();

 private:
  int64_t held_out_every() const;
  void measure_held_out(int64_t step);
  void check_gradients(int64_t step);
  void report(const TrainStep& made);
  void watch_loss();

  const TrainOptions& options_;
  const LoadedModel& loaded_;
  Trainer& trainer_;
  TrainResult& result_;
  TrainListener listener_;
  int64_t first_step_;
  double step_seconds_ = 0;  // without the first, and without what is done between steps
  bool warned_ = false;
};

}  // namespace halftone
