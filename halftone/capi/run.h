// One call that computes, in the thread that made it: its callback, and the signals of a program
// that knows nothing of what happens here.
#pragma once

#include <chrono>
#include <csignal>
#include <string>

#include "halftone/base/progress.h"
#include "halftone/halftone_c.h"

namespace halftone::capi {

// Starts this thread's pool, once. Its threads take no signals: those are the program's own
// threads'.
void start_pool(int threads);

// Holds back, in this thread, the signals that the program handles on the thread's own stack:
// oneDNN points the stack into buffers, which a handler would destroy. They are delivered in
// between.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals() { deliver(); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  void hold();
  void deliver();

 private:
  sigset_t before_;
};

class Run {
 public:
  Run(halftone_progress_fn callback, void* user);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Between steps; an Error where the callback ends the run.
  void report(const Progress& progress);
  void finish_picture() { ++now_.pictures; }

  // What kernels are asked between: whether the run of the calling thread, if there is one, is
  // ended. A model knows no calls, so this finds the thread's own.
  static bool ended();

 private:
  bool ask();  // calls the callback

  Run* outer_;  // a callback may call again
  halftone_progress_fn callback_;
  void* user_;
  halftone_progress now_ = {"text", 0, 0, 0};
  std::string stage_ = "text";
  std::chrono::steady_clock::time_point asked_;
  bool ended_ = false;
  HeldSignals signals_;
};

}  // namespace halftone::capi
