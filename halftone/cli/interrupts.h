// Ctrl-C, SIGTERM and SIGHUP, taken by one thread that waits for them. No handler ever runs: the
// matrix products of oneDNN point the stack into buffers on the heap, which a handler would
// destroy.
#pragma once

#include <atomic>

namespace halftone::cli {

class Interrupts {
 public:
  // Before any other thread starts: those inherit that the signals are blocked. Lives as long as
  // the process.
  static Interrupts& start();

  // While work is watched, the first signal asks it to stop and the second ends the process; else
  // the first one does.
  void watch(bool on) { watching_ += on ? 1 : -1; }
  bool requested() const { return requested_; }

 private:
  void wait();

  std::atomic<int> watching_ = 0;
  std::atomic<bool> requested_ = false;
};

}  // namespace halftone::cli
