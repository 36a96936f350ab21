#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "halftone/cli/cli.h"
#include "halftone/cli/interrupts.h"
#include "halftone/tensor/mapped_file.h"

namespace {

// OpenMP's threads spin while they wait for each other, by default so long that a program that
// shares its cores with another runs fifty times slower instead of two. The library reads its
// setting before main starts, so the program sets it and starts again, once.
void spin_briefly(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "2000", 1);
  ::execv("/proc/self/exe", argv);  // returns only where it fails, and then nothing is lost
}

// A file that is opened later must not become standard output or error. What is written to those
// that were closed still fails.
void fill_standard_streams() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1) ::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

// A reader that went away and a limit on the size of files are errors where something is written.
void report_instead_of_dying() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

// Threads allocate next to nothing, and a heap for each would take 64 MiB of address space.
void share_one_heap() { ::mallopt(M_ARENA_MAX, 1); }

}  // namespace

int main(int argc, char** argv) {
  spin_briefly(argv);
  fill_standard_streams();
  report_instead_of_dying();
  share_one_heap();
  halftone::survive_truncated_files();
  auto& interrupts = halftone::cli::Interrupts::start();
  halftone::cli::Context context;
  context.watch_interrupts = [&](bool on) { interrupts.watch(on); };
  context.interrupted = [&] { return interrupts.requested(); };
  context.terminal = ::isatty(STDERR_FILENO) == 1;
  return halftone::cli::run(argc, argv, context);
}
