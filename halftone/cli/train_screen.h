// A run on a terminal: a bar with the loss and where it is going.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "halftone/cli/progress_bar.h"
#include "halftone/training/train_events.h"

namespace halftone::cli {

class TrainScreen {
 public:
  TrainScreen(const Context& context, bool quiet) : context_(context), quiet_(quiet) {}
  // Throws Error{kCancelled} after Ctrl-C, between the pictures that are prepared; steps end where
  // the trainer asks.
  void show(const TrainEvent& event);
  void finish() { bar_.reset(); }

 private:
  void show_progress(const TrainProgress& at);
  void line(const std::string& text);

  const Context& context_;
  bool quiet_;
  std::optional<ProgressBar> bar_;
  std::string stage_;
  std::vector<double> losses_;
  std::optional<double> held_out_;
};

// The course of numbers in `width` characters, each the mean of its share of them.
std::string sparkline(const std::vector<double>& values, size_t width);

}  // namespace halftone::cli
