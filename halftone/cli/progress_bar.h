// A progress bar on stderr: share, speed and time left. Silent where stderr is no terminal.
#pragma once

#include <chrono>
#include <string>

#include "halftone/base/progress.h"
#include "halftone/cli/cli.h"

namespace halftone::cli {

class ProgressBar {
 public:
  enum class Unit { kBytes, kSteps };
  // `quiet` for --json and the like; Ctrl-C is noticed all the same, while this lives.
  ProgressBar(std::string title, const Context& context, bool quiet, Unit unit = Unit::kBytes);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws at most ten times a second; throws Error{kCancelled} after Ctrl-C.
  void update(const Progress& progress);
  // Only draws.
  void draw(const Progress& progress);
  void clear();  // wipes the line, so that what follows starts on a clean one

 private:
  using Clock = std::chrono::steady_clock;

  std::string title_;
  const Context& context_;
  bool visible_;
  bool drawn_ = false;
  Unit unit_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_{};
};

}  // namespace halftone::cli
