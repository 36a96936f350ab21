#include "halftone/training/mpi_module.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// With others that were stopped as well, and will say so at the end of their step.
constexpr std::chrono::seconds kPatience{2};

// MPI's own, one in a process as MPI is. What is left unfinished among all does not keep others
// from being reached through it.
MPI_Comm goodbye = MPI_COMM_NULL;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

halftone::MpiModule::Place join() {
  halftone::MpiModule::Place place;
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &place.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &place.size);
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  MPI_Comm_rank(here, &place.local_rank);
  MPI_Comm_size(here, &place.local_size);
  MPI_Comm_free(&here);
  MPI_Comm_dup(MPI_COMM_WORLD, &goodbye);
  return place;
}

// In pieces that a count of 32 bits can tell, all on their way at once. Asked for again and again
// instead of waited for, so that Ctrl-C is heard while another process is slow or gone.
bool sum(void* values, size_t count, bool doubles, bool (*stop)(const void*), const void* of) {
  constexpr size_t kPiece = size_t{1} << 24;
  const size_t bytes = doubles ? sizeof(double) : sizeof(float);
  std::vector<MPI_Request> requests;
  for (size_t first = 0; first < count; first += kPiece) {
    requests.emplace_back();
    MPI_Iallreduce(MPI_IN_PLACE, static_cast<std::byte*>(values) + first * bytes,
                   static_cast<int>(std::min(kPiece, count - first)),
                   doubles ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests.back());
  }
  std::optional<Clock::time_point> stopped;
  for (int tries = 0;; ++tries) {
    int done = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (done != 0) return true;
    if (!stopped && stop(of)) stopped = Clock::now();
    if (stopped && Clock::now() - *stopped > kPatience) return false;
    constexpr int kEager = 1000;  // then the others are slow, and need the cores
    if (tries > kEager) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void leave() { MPI_Finalize(); }

// Sums may be under way still, which MPI does not finish with.
bool give_up() {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(goodbye, &request);
  constexpr int kTries = 3000;
  int done = 0;
  for (int i = 0; i < kTries && done == 0; ++i) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return done != 0;
}

void end_all() { MPI_Abort(MPI_COMM_WORLD, 1); }

}  // namespace

extern "C" const halftone::MpiModule* halftone_mpi_module() {
  static const halftone::MpiModule kModule{join, sum, leave, give_up, end_all};
  return &kModule;
}
