#include <unistd.h>

#include <csignal>

#include "halftone/cli/cli.h"

namespace {

// A signal handler can only reach what is global; commands see it through Context.
volatile std::sig_atomic_t interrupts = 0;

void on_interrupt(int) {
  interrupts = interrupts + 1;
  if (interrupts > 1) ::_exit(halftone::cli::kInterrupted);  // the second Ctrl-C does not wait
}

}  // namespace

int main(int argc, char** argv) {
  halftone::cli::Context context;
  context.watch_interrupts = [] {
    std::signal(SIGINT, on_interrupt);
    std::signal(SIGTERM, on_interrupt);
  };
  context.interrupted = [] { return interrupts > 0; };
  context.terminal = ::isatty(STDERR_FILENO) == 1;
  return halftone::cli::run(argc, argv, context);
}
