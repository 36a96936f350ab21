#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "halftone/cli/cli.h"

namespace {

// A signal handler can only reach what is global; commands see it through Context.
volatile std::sig_atomic_t interrupts = 0;

void on_interrupt(int) {
  interrupts = interrupts + 1;
  if (interrupts > 1) ::_exit(halftone::cli::kInterrupted);  // the second Ctrl-C does not wait
}

// OpenMP's threads spin while they wait for each other, by default so long that a program that
// shares its cores with another runs fifty times slower instead of two. The library reads its
// setting before main starts, so the program sets it and starts again, once.
void spin_briefly(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "2000", 1);
  ::execv("/proc/self/exe", argv);  // returns only where it fails, and then nothing is lost
}

}  // namespace

int main(int argc, char** argv) {
  spin_briefly(argv);
  halftone::cli::Context context;
  context.watch_interrupts = [] {
    std::signal(SIGINT, on_interrupt);
    std::signal(SIGTERM, on_interrupt);
  };
  context.interrupted = [] { return interrupts > 0; };
  context.terminal = ::isatty(STDERR_FILENO) == 1;
  return halftone::cli::run(argc, argv, context);
}
