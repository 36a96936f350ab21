#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "halftone/cli/cli.h"
#include "halftone/cli/interrupts.h"
#include "halftone/kernels/cuda/backend.h"
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

// Threads allocate next to nothing, and a heap for each would take 64 MiB of address space. With a
// GPU they may compile kernels, and would wait for each other.
void share_one_heap() {
  rlimit space{};
  const bool limited = ::getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur != RLIM_INFINITY;
  if (limited || !halftone::has_cuda()) ::mallopt(M_ARENA_MAX, 1);
}

// All results are written and synced by now. Ending libraries one by one, CUDA's above all, takes
// longer than a small picture; sanitizers look for leaks there.
[[noreturn]] void leave(int code) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (std::fflush(nullptr) == 0) ::_exit(code);
#endif
  std::exit(code);
}

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
  leave(halftone::cli::run(argc, argv, context));
}
