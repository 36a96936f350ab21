#include "halftone/cli/interrupts.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <system_error>
#include <thread>

#include "halftone/cli/cli.h"

namespace halftone::cli {
namespace {

// What nohup or a shell's background job ignores stays ignored.
sigset_t signals_to_take() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now{};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) {
      sigaddset(&set, signal);
    }
  }
  return set;
}

}  // namespace

Interrupts& Interrupts::start() {
  // Never destroyed: the thread waits until the process ends.
  static auto* const interrupts = [] {
    auto* made = new Interrupts;
    const sigset_t set = signals_to_take();
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    try {
      std::thread([made] { made->wait(); }).detach();
    } catch (const std::system_error&) {  // no thread to be had: signals end the process at once
      ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    }
    return made;
  }();
  return *interrupts;
}

void Interrupts::wait() {
  const sigset_t set = signals_to_take();
  for (;;) {
    int signal = 0;
    if (::sigwait(&set, &signal) != 0) continue;
    if (watching_ > 0 && !requested_.exchange(true)) continue;
    if (watching_ > 0) ::_exit(kInterrupted);
    // As if it had not been blocked.
    std::signal(signal, SIG_DFL);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
    ::raise(signal);
  }
}

}  // namespace halftone::cli
