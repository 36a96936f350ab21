#include "halftone/capi/run.h"

#include <pthread.h>

#include "halftone/base/error.h"
#include "halftone/base/threads.h"

namespace halftone::capi {
namespace {

using Clock = std::chrono::steady_clock;

// Often enough for a person who waits, seldom enough to cost nothing.
constexpr std::chrono::milliseconds kAskEvery(100);

thread_local Run* running = nullptr;

// Those of the thread's own doing cannot be put off.
bool can_wait(int signal) {
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
    if (signal == own) return false;
  }
  return true;
}

bool handled_on_this_stack(int signal) {
  struct sigaction now{};
  if (::sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_ONSTACK) != 0) return false;
  if ((now.sa_flags & SA_SIGINFO) != 0) return true;
  return now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN;
}

template <class Which>
sigset_t signals_that(const Which& which) {
  sigset_t set;
  sigemptyset(&set);
  for (int signal = 1; signal < NSIG; ++signal) {
    if (can_wait(signal) && which(signal)) sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

void start_pool(int threads) {
  thread_local int started = 0;
  const int wanted = threads > 0 ? threads : hardware_threads();
  if (started >= wanted) return;
  const sigset_t all = signals_that([](int) { return true; });
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  start_threads(wanted);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  started = wanted;
}

HeldSignals::HeldSignals() {
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before_);
  hold();
}
void HeldSignals::hold() {
  const sigset_t held = signals_that(handled_on_this_stack);
  ::pthread_sigmask(SIG_BLOCK, &held, nullptr);
}
void HeldSignals::deliver() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

Run::Run(halftone_progress_fn callback, void* user)
    : outer_(running), callback_(callback), user_(user), asked_(Clock::now()) {
  running = this;
}
Run::~Run() { running = outer_; }

void Run::report(const Progress& progress) {
  stage_ = progress.item;
  now_.step = progress.done;
  now_.steps = progress.total;
  if (!ask()) return;
  throw Error(ErrorCode::kCancelled, "progress", "the callback ended the run at step {} of {}",
              now_.step, now_.steps);
}

bool Run::ended() {
  Run* const run = running;
  if (run == nullptr || Clock::now() - run->asked_ < kAskEvery) return false;
  return run->ask();
}

bool Run::ask() {
  // Handlers run here, so that a callback sees what they did.
  signals_.deliver();
  if (callback_ != nullptr && !ended_) {
    now_.stage = stage_.c_str();
    ended_ = callback_(user_, &now_) != 0;
  }
  signals_.hold();
  asked_ = Clock::now();
  return ended_;
}

}  // namespace halftone::capi
