#include "halftone/runtime/mpi_module.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

// With others that may be there in a moment, once this process is to stop: whoever starts it may
// not let it live for long.
constexpr std::chrono::milliseconds kPatience{200};

// MPI's own, one in a process as MPI is. What is left unfinished among all does not keep others
// from being reached through `goodbye`.
struct Meeting {
  MPI_Comm goodbye = MPI_COMM_NULL;
  int rank = 0, size = 1;
  bool told = false, heard = false;  // that one is to stop
  std::mutex mutex;                  // MPI is called by one thread at a time, and never for long
};
Meeting meeting;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

halftone::MpiModule::Place join() {
  halftone::MpiModule::Place place;
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  place.threads = provided >= MPI_THREAD_SERIALIZED;
  MPI_Comm_rank(MPI_COMM_WORLD, &place.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &place.size);
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  MPI_Comm_rank(here, &place.local_rank);
  MPI_Comm_size(here, &place.local_size);
  MPI_Comm_free(&here);
  MPI_Comm_dup(MPI_COMM_WORLD, &meeting.goodbye);
  // What cannot be reached any more is told of, instead of ending this process.
  for (MPI_Comm all : {MPI_COMM_WORLD, meeting.goodbye}) {
    MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
  }
  meeting.rank = place.rank;
  meeting.size = place.size;
  return place;
}

bool stopping(bool own) {
  constexpr int kStop = 1;
  const std::scoped_lock lock(meeting.mutex);
  if (own && !meeting.told) {
    meeting.told = true;
    for (int other = 0; other < meeting.size; ++other) {
      if (other == meeting.rank) continue;
      MPI_Request request = MPI_REQUEST_NULL;  // of nothing, which no one has to wait for
      MPI_Isend(nullptr, 0, MPI_BYTE, other, kStop, meeting.goodbye, &request);
      MPI_Request_free(&request);
    }
  }
  if (own || meeting.heard) return true;
  int found = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, kStop, meeting.goodbye, &found, MPI_STATUS_IGNORE);
  meeting.heard = found != 0;
  return meeting.heard;
}

// Looks after a request, which is null once it is done.
bool test(MPI_Request& request) {
  const std::scoped_lock lock(meeting.mutex);
  int done = 0;
  return MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS;
}

// Asked for again and again instead of waited for, so that Ctrl-C is heard while another process is
// slow or gone.
class Waiting {
 public:
  Waiting(bool (*stop)(const void*), const void* of) : stop_(stop), of_(of) {}

  // Whether it was done: false where the wait was ended, or others cannot be reached.
  bool until(MPI_Request& request) {
    for (int tries = 0;; ++tries) {
      if (!test(request)) return false;
      if (request == MPI_REQUEST_NULL) return true;
      const Clock::time_point now = Clock::now();
      if (end_ == kNever && stop_(of_)) end_ = now + kPatience;
      if (now > end_) return false;
      constexpr int kEager = 1000;  // then the others are slow, and need the cores
      if (tries > kEager) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  bool (*stop_)(const void*);
  const void* of_;
  static constexpr Clock::time_point kNever = Clock::time_point::max();
  Clock::time_point end_ = kNever;
};

// In pieces, a few on their way at once: MPI keeps as much again of each.
bool sum(void* values, size_t count, bool doubles, bool (*stop)(const void*), const void* of) {
  constexpr size_t kPiece = size_t{1} << 19, kAtOnce = 4;
  const size_t bytes = doubles ? sizeof(double) : sizeof(float);
  std::array<MPI_Request, kAtOnce> requests;
  requests.fill(MPI_REQUEST_NULL);
  Waiting waiting(stop, of);
  size_t slot = 0;
  for (size_t first = 0; first < count; first += kPiece, ++slot) {
    MPI_Request& request = requests[slot % kAtOnce];  // the oldest: all begin them in one order
    if (!waiting.until(request)) return false;
    const std::scoped_lock lock(meeting.mutex);
    const int begun =
        MPI_Iallreduce(MPI_IN_PLACE, static_cast<std::byte*>(values) + first * bytes,
                       static_cast<int>(std::min(kPiece, count - first)),
                       doubles ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
    if (begun != MPI_SUCCESS) return false;
  }
  for (MPI_Request& request : requests) {
    if (!waiting.until(request)) return false;
  }
  return true;
}

void leave() { MPI_Finalize(); }

// Sums may be under way still, which MPI does not finish with. The first saves before it comes, for
// as long as it takes, and then has nothing to wait for.
bool give_up() {
  constexpr std::chrono::seconds kMost{5};
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const std::scoped_lock lock(meeting.mutex);
    MPI_Ibarrier(meeting.goodbye, &request);
  }
  const auto start = Clock::now();
  for (;;) {
    if (!test(request)) return false;
    if (request == MPI_REQUEST_NULL) return true;
    if (meeting.rank == 0 && Clock::now() - start > kMost) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void end_all() { MPI_Abort(MPI_COMM_WORLD, 1); }

}  // namespace

extern "C" const halftone::MpiModule* halftone_mpi_module() {
  static const halftone::MpiModule kModule{join, sum, stopping, leave, give_up, end_all};
  return &kModule;
}
