// A progress bar on stderr: share, speed and time left. Where stderr is no terminal, a line now and
// then, so that logs of long work tell how far it is and logs of short work stay empty.
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

  // Draws at most ten times a second, or adds a line to a log twice a minute; throws
  // Error{kCancelled} after Ctrl-C.
  void update(const Progress& progress);
  // Only draws.
  void draw(const Progress& progress);
  void clear();  // wipes the line, so that what follows starts on a clean one

 private:
  using Clock = std::chrono::steady_clock;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  std::string title_;
  const Context& context_;
  bool visible_;
  bool logged_;            // instead of being drawn
  bool has_line_ = false;  // in the log
  bool drawn_ = false;
  Unit unit_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_{};
};

}  // namespace halftone::cli
