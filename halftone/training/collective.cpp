#include "halftone/training/collective.h"

#include <cstdlib>

#include "halftone/base/error.h"

#if defined(HALFTONE_MPI)
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>
#endif

namespace halftone {
namespace {

// What Open MPI, and MPICH and its relatives, tell the processes that they start.
bool was_started_among_others() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* size = std::getenv(name);
    if (size != nullptr && std::atoi(size) > 1) return true;
  }
  return false;
}

#if defined(HALFTONE_MPI)
class MpiCollective : public Collective {
 public:
  MpiCollective() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm here = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Comm_rank(here, &local_rank_);
    MPI_Comm_size(here, &local_size_);
    MPI_Comm_free(&here);
    // What is left unfinished among all does not keep this one from being reached.
    MPI_Comm_dup(MPI_COMM_WORLD, &goodbye_);
  }
  ~MpiCollective() override {
    if (!left_) MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MpiCollective(const MpiCollective&) = delete;
  MpiCollective& operator=(const MpiCollective&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }

  void sum(std::span<float> values, const Stop& stop) override {
    add(values.data(), values.size(), MPI_FLOAT, stop);
  }
  void sum(std::span<double> values, const Stop& stop) override {
    add(values.data(), values.size(), MPI_DOUBLE, stop);
  }
  void leave() override {
    if (!left_) MPI_Finalize();
    left_ = true;
  }
  void give_up() override {
    if (left_) return;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(goodbye_, &request);
    constexpr int kTries = 3000;
    int done = 0;
    for (int i = 0; i < kTries && done == 0; ++i) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    left_ = done != 0;  // sums may be under way still, which MPI does not finish with
  }

 private:
  // With others that were stopped as well, and will say so at the end of their step.
  static constexpr std::chrono::seconds kPatience{2};

  // In pieces that a count of 32 bits can tell, all on their way at once. Asked for again and
  // again instead of waited for, so that Ctrl-C is heard while another process is slow or gone.
  template <class T>
  void add(T* values, size_t count, MPI_Datatype type, const Stop& stop) {
    constexpr size_t kPiece = size_t{1} << 24;
    std::vector<MPI_Request> requests;
    for (size_t first = 0; first < count; first += kPiece) {
      requests.emplace_back();
      MPI_Iallreduce(MPI_IN_PLACE, values + first,
                     static_cast<int>(std::min(kPiece, count - first)), type, MPI_SUM,
                     MPI_COMM_WORLD, &requests.back());
    }
    using Clock = std::chrono::steady_clock;
    std::optional<Clock::time_point> stopped;
    int done = 0;
    for (int tries = 0; done == 0; ++tries) {
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
      if (done != 0) return;
      if (!stopped && stop && stop()) stopped = Clock::now();
      if (stopped && Clock::now() - *stopped > kPatience) {
        throw Error(ErrorCode::kCancelled, "", "interrupted while waiting for other processes");
      }
      constexpr int kEager = 1000;  // then the others are slow, and need the cores
      if (tries > kEager) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  MPI_Comm goodbye_ = MPI_COMM_NULL;
  bool left_ = false;
};
#endif

}  // namespace

std::unique_ptr<Collective> join_processes() {
  if (!was_started_among_others()) return std::make_unique<Collective>();
#if defined(HALFTONE_MPI)
  return std::make_unique<MpiCollective>();
#else
  throw Error(ErrorCode::kUnsupported, "mpirun",
              "has started several processes, and this build has no MPI: build it with "
              "-DHALFTONE_MPI=ON");
#endif
}

}  // namespace halftone
