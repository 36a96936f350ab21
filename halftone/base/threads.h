// The one thread pool: OpenMP. The number of threads travels with the call, never in a global.
#pragma once

#include <algorithm>
#include <cstdint>

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

// Calls body(begin, end) for consecutive pieces of [0, count) of at least `grain` items each, on
// up to `threads` threads. body must not throw.
template <class Body>
void parallel_for(int threads, int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  const int64_t most = (count + std::max<int64_t>(grain, 1) - 1) / std::max<int64_t>(grain, 1);
  const int64_t pieces = std::min<int64_t>(std::max(threads, 1), most);
  if (pieces == 1) return body(int64_t{0}, count);
#if defined(_OPENMP)
#pragma omp parallel for num_threads(static_cast<int>(pieces)) schedule(static, 1)
#endif
  for (int64_t piece = 0; piece < pieces; ++piece) {
    body(count * piece / pieces, count * (piece + 1) / pieces);
  }
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
