#include "halftone/base/threads.h"

#include <sys/resource.h>

#include <condition_variable>
#include <system_error>
#include <thread>
#include <vector>

namespace halftone {
namespace {

// How many threads can live at once, the calling one among them: found out by starting them.
int startable_threads(int wanted) {
  std::mutex mutex;
  std::condition_variable all_counted;
  bool counted = false;
  std::vector<std::thread> threads;
  try {
    threads.reserve(static_cast<size_t>(wanted));
    while (static_cast<int>(threads.size()) + 1 < wanted) {
      threads.emplace_back([&] {
        std::unique_lock<std::mutex> lock(mutex);
        all_counted.wait(lock, [&] { return counted; });
      });
    }
  } catch (const std::system_error&) {  // the system refuses one more
  } catch (const std::bad_alloc&) {
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    counted = true;
  }
  all_counted.notify_all();
  for (std::thread& thread : threads) thread.join();
  return static_cast<int>(threads.size()) + 1;
}

bool address_space_is_limited() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

int start_threads(int wanted) {
  if (wanted <= 0) wanted = hardware_threads();
  int threads = startable_threads(wanted);
  // Stacks are not all that has to find room.
  if (threads < wanted && address_space_is_limited()) threads = std::max(1, threads / 4);
  // They stay from now on, whatever else takes memory later.
  parallel_for(threads, threads, 1, [](int64_t, int64_t) {});
  return threads;
}

}  // namespace halftone
