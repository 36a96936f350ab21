#include "halftone/training/train_course.h"

#include <algorithm>

#include "halftone/runtime/devices.h"

namespace halftone {

double recent_loss(const std::vector<TrainStep>& curve, size_t most) {
  const size_t count = std::min(most, curve.size());
  double sum = 0;
  for (size_t i = curve.size() - count; i < curve.size(); ++i) sum += curve[i].loss;
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

TrainCourse::TrainCourse(const TrainOptions& options, const LoadedModel& loaded, Trainer& trainer,
                         TrainResult& result, const TrainListener& listener)
    : options_(options),
      loaded_(loaded),
      trainer_(trainer),
      result_(result),
      listener_(listener),
      first_step_(result.resumed_from + 1) {}

void TrainCourse::add(const TrainStep& made, double seconds) {
  if (made.step > first_step_) step_seconds_ += seconds;
  if (made.sums) result_.sums = result_.sums.value_or(SumSeconds{}) += *made.sums;
  result_.curve.push_back(made);
  measure_memory();
  report(made);
  watch_loss();
}

void TrainCourse::measure(int64_t step) {
  measure_held_out(step);
  check_gradients(step);
}

int64_t TrainCourse::held_out_every() const {
  constexpr int64_t kTimes = 20;
  if (options_.held_out.every > 0) return options_.held_out.every;
  return std::max<int64_t>(1, options_.rules.steps / kTimes);
}

void TrainCourse::measure_held_out(int64_t step) {
  if (result_.held_out_pictures == 0) return;
  const std::vector<HeldOutLoss>& before = result_.held_out;
  const bool is_due = before.empty() || step % held_out_every() == 0 || trainer_.done();
  if (!is_due || (!before.empty() && before.back().step >= step)) return;
  result_.held_out.push_back({step, trainer_.held_out_loss()});
  listener_.events(result_.held_out.back());
}

// Early, while gradients are large: near the end, they are what is left of the batch's noise.
void TrainCourse::check_gradients(int64_t step) {
  constexpr int64_t kPart = 10;
  if (!options_.rules.check_gradients || !result_.cosines.empty()) return;
  if (step < std::max<int64_t>(1, options_.rules.steps / kPart)) return;
  result_.cosines = trainer_.gradient_cosines();
  GradientsChecked said;
  said.worst = 1;
  for (const Trainer::GradientCosine& of : result_.cosines) {
    said.mean += of.cosine / static_cast<double>(result_.cosines.size());
    if (of.cosine > said.worst && !said.worst_weight.empty()) continue;
    said.worst = of.cosine;
    said.worst_weight = of.weight;
  }
  listener_.events(said);
}

void TrainCourse::measure_memory() {
  const DeviceContext* device = loaded_.context.get();
  result_.peak_bytes = std::max(
      result_.peak_bytes, device != nullptr ? device->memory().most_held : anonymous_memory());
}

void TrainCourse::report(const TrainStep& made) {
  const int64_t total = options_.rules.steps;
  const auto steps = static_cast<double>(made.step - first_step_);
  TrainProgress at;
  at.step = made.step;
  at.total = total;
  at.loss = made.loss;
  at.average_loss = recent_loss(result_.curve, 50);
  at.learning_rate = made.learning_rate;
  at.gradient_norm = made.gradient_norm;
  at.sums = made.sums;
  if (steps > 0) {
    const int64_t processes = options_.processes != nullptr ? options_.processes->size() : 1;
    const auto rows =
        static_cast<double>(options_.rules.batch * options_.rules.accumulate * processes);
    at.samples_per_second = result_.samples_per_second = steps * rows / step_seconds_;
    at.seconds_left = step_seconds_ / steps * static_cast<double>(total - made.step);
  }
  at.peak_bytes = result_.peak_bytes;
  listener_.events(at);
}

// Once: a run that goes astray without ever reaching a number that is none.
void TrainCourse::watch_loss() {
  constexpr size_t kWindow = 20;
  if (warned_ || result_.curve.size() < 2 * kWindow) return;
  const std::vector<TrainStep> first(result_.curve.begin(), result_.curve.begin() + kWindow);
  const double then = recent_loss(first, kWindow), now = recent_loss(result_.curve, kWindow);
  if (now < 2 * then) return;
  warned_ = true;
  listener_.warn(
      fmt::format("the loss has grown from {:.4g} to {:.4g} at step {}: a lower learning rate "
                  "may help",
                  then, now, result_.curve.size()));
}

}  // namespace halftone
