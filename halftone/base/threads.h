// The one thread pool: OpenMP. The number of threads travels with the call, never in a global.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace halftone {

// Threads that this process may run on (its CPU affinity), at least 1.
inline int hardware_threads() {
#if defined(_OPENMP)
  return std::max(1, omp_get_num_procs());
#else
  return 1;
#endif
}

// Starts the pool with up to `wanted` threads (0: as many as the hardware has) and says how many
// there are: fewer where the system refuses more, by a limit on processes or on memory. OpenMP
// would end the process when it meets such a limit.
int start_threads(int wanted);

// Keeps the first exception of a parallel region, which none may leave.
class FirstException {
 public:
  template <class Body>
  void guard(const Body& body) noexcept {
    try {
      body();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!first_) first_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

// Calls body(begin, end) for consecutive pieces of [0, count) of at least `grain` items each, on
// up to `threads` threads. What a body throws is thrown here, once all have ended.
template <class Body>
void parallel_for(int threads, int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  const int64_t most = (count + std::max<int64_t>(grain, 1) - 1) / std::max<int64_t>(grain, 1);
  const int64_t pieces = std::min<int64_t>(std::max(threads, 1), most);
  if (pieces == 1) return body(int64_t{0}, count);
  FirstException exception;
  // Always the whole pool: a smaller team would end the other threads, and the next larger one
  // would have to start them again.
#if defined(_OPENMP)
#pragma omp parallel for num_threads(threads) schedule(static, 1)
#endif
  for (int64_t piece = 0; piece < pieces; ++piece) {
    exception.guard([&] { body(count * piece / pieces, count * (piece + 1) / pieces); });
  }
  exception.rethrow();
}

// While it lives, libraries that take the calling thread's OpenMP setting use this many threads.
class ThreadLimit {
 public:
#if defined(_OPENMP)
  explicit ThreadLimit(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(std::max(threads, 1));
  }
  ~ThreadLimit() { omp_set_num_threads(before_); }
#else
  explicit ThreadLimit(int) {}
#endif
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

#if defined(_OPENMP)
 private:
  int before_;
#endif
};

}  // namespace halftone
