#include "halftone/cli/train_screen.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/text.h"

namespace halftone::cli {

std::string sparkline(const std::vector<double>& values, size_t width) {
  constexpr const char* kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const size_t columns = std::min(width, values.size());
  std::vector<double> means;
  for (size_t c = 0; c < columns; ++c) {
    const size_t begin = c * values.size() / columns, end = (c + 1) * values.size() / columns;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += values[i];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  if (means.empty()) return "";
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  std::string line;
  for (const double mean : means) {
    const double share = *high > *low ? (mean - *low) / (*high - *low) : 0;
    line += kBars[std::min<size_t>(7, static_cast<size_t>(share * 8))];
  }
  return line;
}

void TrainScreen::line(const std::string& text) {
  if (bar_) bar_->clear();
  print_note("halftone train: {}\n", text);
}

void TrainScreen::show_progress(const TrainProgress& at) {
  if (stage_ != "training") {
    stage_ = "training";
    bar_.emplace(stage_, context_, quiet_, ProgressBar::Unit::kSteps);
  }
  losses_.push_back(at.loss);
  constexpr size_t kWidth = 16;
  std::string text = fmt::format("loss {:.4f} {}", at.average_loss, sparkline(losses_, kWidth));
  if (held_out_) text += fmt::format(" held out {:.4f}", *held_out_);
  bar_->draw({text, at.step, at.total});
}

void TrainScreen::show(const TrainEvent& event) {
  if (const auto* preparing = std::get_if<Preparing>(&event)) {
    if (stage_ != preparing->stage) {
      stage_ = preparing->stage;
      bar_.emplace("encoding " + stage_, context_, quiet_, ProgressBar::Unit::kSteps);
    }
    bar_->update({"", preparing->done, preparing->total});
  } else if (const auto* warning = std::get_if<TrainWarning>(&event)) {
    line(warning->message);
  } else if (const auto* progress = std::get_if<TrainProgress>(&event)) {
    show_progress(*progress);
  } else if (const auto* held_out = std::get_if<HeldOutLoss>(&event)) {
    held_out_ = held_out->loss;
  }
}

}  // namespace halftone::cli
