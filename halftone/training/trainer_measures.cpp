// What a trainer measures beside its steps: losses of what is held out, and gradients beside those
// in high precision.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "halftone/training/trainer.h"

namespace halftone {
namespace {

class AverageShown {
 public:
  explicit AverageShown(Parameters& parameters) : parameters_(parameters) {
    parameters_.show_average();
  }
  ~AverageShown() { parameters_.show_values(); }
  AverageShown(const AverageShown&) = delete;
  AverageShown& operator=(const AverageShown&) = delete;

 private:
  Parameters& parameters_;
};

}  // namespace

// Of each size, as many at a time as in training. Every example has noise of a few strengths.
std::vector<std::vector<Trainer::Row>> Trainer::held_out_batches() const {
  constexpr uint64_t kStrengths = 4;
  std::map<std::string, std::vector<Row>> by_size;
  for (size_t i = 0; i < held_out_.size(); ++i) {
    for (uint64_t k = 0; k < kStrengths; ++k) {
      by_size[held_out_[i].latents.shape().str()].push_back(
          {&held_out_[i], &held_out_[i].condition, i * kStrengths + k});
    }
  }
  std::vector<std::vector<Row>> batches;
  for (const auto& [size, rows] : by_size) {
    for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(rules_.batch)) {
      const size_t end = std::min(rows.size(), begin + static_cast<size_t>(rules_.batch));
      batches.emplace_back(rows.begin() + static_cast<std::ptrdiff_t>(begin),
                           rows.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  return batches;
}

double Trainer::held_out_loss() {
  const AverageShown shown(*parameters_);
  const std::vector<std::vector<Row>> batches = held_out_batches();
  double sum = 0, rows = 0;
  for (size_t i = 0; i < batches.size(); ++i) {  // processes take them in turn
    const auto count = static_cast<double>(batches[i].size());
    rows += count;
    if (static_cast<int>(i % static_cast<size_t>(processes_.size())) != processes_.rank()) continue;
    sum += count * run(program_for(TrainPass::kHeldOut, batches[i]), batches[i], kSameInEveryRun);
  }
  return processes_.sum(sum, cancelled_) / rows;
}

// As many as a batch, of the first one's size.
std::vector<Trainer::Row> Trainer::first_rows() const {
  std::vector<Row> rows;
  for (size_t i = 0; rows.size() < static_cast<size_t>(rules_.batch); ++i) {
    const TrainExample& example = examples_[i % examples_.size()];
    if (example.latents.shape() != examples_[0].latents.shape()) continue;
    rows.push_back({&example, &example.condition, i});
  }
  return rows;
}

// Towards the same, with nothing left out: a teacher is the reference itself, and dropout another
// model each time.
TrainPass Trainer::compared_pass() const {
  const bool alike = !rules_.teacher && rules_.dropout == 0;
  return alike ? TrainPass::kGradients : TrainPass::kCompared;
}

std::vector<Trainer::GradientCosine> Trainer::gradient_cosines() {
  const std::vector<Row> rows = first_rows();
  for (const TrainPass pass : {compared_pass(), TrainPass::kReference}) {
    TrainPrograms::Entry& entry = program_for(pass, rows);
    run(entry, rows, kSameInEveryRun);
    if (pass == TrainPass::kReference) parameters_->set_gradients_aside();
    parameters_->take_gradients(*entry.program, false);
  }
  const auto [used, reference] = parameters_->gradient_pair();
  // An adapter's two matrices as one.
  std::map<std::string, std::array<double, 3>> products;
  for (const auto& [name, gradient] : used) {
    std::string weight = name;
    for (const std::string& site : sites_.weights) {
      if (name == lora_down_name(site) || name == lora_up_name(site)) weight = site;
    }
    std::array<double, 3>& sums = products[weight];
    const auto a = gradient.as<float>(), b = reference.at(name).as<float>();
    for (size_t i = 0; i < a.size(); ++i) {
      sums[0] += static_cast<double>(a[i]) * b[i];
      sums[1] += static_cast<double>(a[i]) * a[i];
      sums[2] += static_cast<double>(b[i]) * b[i];
    }
  }
  std::vector<GradientCosine> cosines;
  for (const auto& [weight, sums] : products) {
    const double length = std::sqrt(sums[1] * sums[2]);
    cosines.push_back({weight, length > 0 ? sums[0] / length : sums[1] == sums[2] ? 1.0 : 0.0});
  }
  return cosines;
}

Trainer::Trial Trainer::try_gradients() {
  Trial trial;
  trial.cosines = gradient_cosines();  // everything is compiled and chosen by now
  const std::vector<Row> rows = first_rows();
  for (const TrainPass pass : {compared_pass(), TrainPass::kReference}) {
    TrainPrograms::Entry& entry = program_for(pass, rows);
    double& best = pass == TrainPass::kReference ? trial.wide_seconds : trial.seconds;
    constexpr int kRuns = 5;
    for (int i = 0; i < kRuns; ++i) {
      const auto start = std::chrono::steady_clock::now();
      run(entry, rows, kSameInEveryRun);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      best = i == 0 ? taken.count() : std::min(best, taken.count());
    }
  }
  return trial;
}

}  // namespace halftone
