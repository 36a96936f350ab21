#include "halftone/runtime/collective.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/runtime/mpi_module.h"
#include "halftone/runtime/this_machine.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

// What Open MPI, and MPICH and its relatives, tell the processes that they start; 0: there is none.
int processes_of_mpirun() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* size = std::getenv(name);
    if (size != nullptr) return std::atoi(size);
  }
  return 0;
}

// Beside the program, or where it is installed. MPI finds its own parts only where its symbols are
// everybody's.
const MpiModule& load_module() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  std::string why;
  for (const fs::path& folder : {program, program / "../lib/halftone"}) {
    void* module = ::dlopen((folder / kMpiModuleFile).c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (module == nullptr) {
      if (fs::exists(folder / kMpiModuleFile, ignored)) why = ::dlerror();
      continue;
    }
    void* function = ::dlsym(module, kMpiModuleFunction);
    if (function != nullptr) return *reinterpret_cast<MpiModuleFunction>(function)();
    why = ::dlerror();
  }
  throw Error(ErrorCode::kUnsupported, "mpirun", "has started several processes, and {}",
              why.empty() ? "this build has no MPI: build it with -DHALFTONE_MPI=ON" : why);
}

class MpiCollective : public Collective {
 public:
  explicit MpiCollective(const MpiModule& module) : mpi_(module), place_(module.join()) {
    if (!place_.threads) {
      throw Error(ErrorCode::kUnsupported, "mpirun",
                  "this MPI can be called by one thread alone: it was built without threads");
    }
    const std::string here = this_machine();
    for (const std::string& told : gather(fmt::format("{}\n{}", ::getpid(), here), {})) {
      const size_t end = told.find('\n');
      pids_.push_back(told.substr(end + 1) == here ? std::atoi(told.c_str()) : kElsewhere);
    }
  }
  ~MpiCollective() override {
    if (!left_) mpi_.abort();
  }
  MpiCollective(const MpiCollective&) = delete;
  MpiCollective& operator=(const MpiCollective&) = delete;

  int rank() const override { return place_.rank; }
  int size() const override { return place_.size; }
  int local_rank() const override { return place_.local_rank; }
  int local_size() const override { return place_.local_size; }

  void sum(std::span<float> values, const Stop& stop) override {
    add(values.data(), values.size(), false, stop);
  }
  void sum(std::span<double> values, const Stop& stop) override {
    add(values.data(), values.size(), true, stop);
  }
  bool stopping(bool own) override {
    if (left_) return own;
    return mpi_.stopping(own) || has_lost_one();
  }
  std::string lost() override {
    if (left_) return {};
    for (int r = 0; r < size(); ++r) {
      if (!lives(r)) return fmt::format("process {} of {} has died", r + 1, size());
    }
    return {};
  }
  bool is_first_left() override { return rank() == first_left(); }
  void leave() override {
    if (!left_) mpi_.leave();
    left_ = true;
  }
  void give_up() override {
    if (left_) return;
    if (lost().empty()) {
      left_ = mpi_.give_up();
    } else {
      wait_for_first_left();
    }
  }

 private:
  static constexpr int kElsewhere = 0;  // on another machine

  // One that has died is no one's child here, and its number is soon nobody's.
  bool lives(int rank) const {
    if (pids_.empty()) return true;  // not told yet
    const pid_t pid = pids_[static_cast<size_t>(rank)];
    return pid == kElsewhere || ::kill(pid, 0) == 0 || errno != ESRCH;
  }
  int first_left() const {
    int rank = 0;
    while (!left_ && !lives(rank)) ++rank;  // this one does
    return rank;
  }
  // As `stopping` is asked between any two kernels.
  bool has_lost_one() {
    constexpr std::chrono::milliseconds kBetween{100};
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now);
    if (milliseconds.count() >= look_at_) {
      look_at_ = (milliseconds + kBetween).count();
      if (!lost().empty()) has_lost_one_ = true;
    }
    return has_lost_one_;
  }
  // As for as long as it saves: mpirun ends all once another has ended.
  void wait_for_first_left() const {
    const int first = first_left();
    if (first == rank()) return;
    const bool elsewhere = pids_[static_cast<size_t>(first)] == kElsewhere;
    const std::chrono::seconds most{elsewhere ? 5 : 60};
    const auto start = std::chrono::steady_clock::now();
    while (lives(first) && std::chrono::steady_clock::now() - start < most) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  void add(void* values, size_t count, bool doubles, const Stop& stop) {
    struct Asked {
      const Stop& stop;
      MpiCollective& all;
    } asked{stop, *this};
    const auto ask = [](const void* of) {
      const Asked& wanted = *static_cast<const Asked*>(of);
      return (wanted.stop && wanted.stop()) || wanted.all.has_lost_one();
    };
    if (mpi_.sum(values, count, doubles, ask, &asked)) return;
    throw Error(ErrorCode::kCancelled, "", "interrupted while waiting for other processes");
  }

  const MpiModule& mpi_;
  MpiModule::Place place_;
  std::vector<pid_t> pids_;  // by rank
  std::atomic<int64_t> look_at_ = 0;
  std::atomic<bool> has_lost_one_ = false;
  bool left_ = false;
};

}  // namespace

// By sums in which everyone has zeros where the others have their bytes.
std::vector<std::string> Collective::gather(const std::string& own, const Stop& stop) {
  const auto count = static_cast<size_t>(size()), place = static_cast<size_t>(rank());
  std::vector<double> lengths(count);
  lengths[place] = static_cast<double>(own.size());
  sum(lengths, stop);
  std::vector<size_t> begins = {0};
  for (const double length : lengths) begins.push_back(begins.back() + static_cast<size_t>(length));
  std::vector<float> bytes(begins.back());
  for (size_t i = 0; i < own.size(); ++i) {
    bytes[begins[place] + i] = static_cast<float>(static_cast<unsigned char>(own[i]));
  }
  sum(bytes, stop);
  std::vector<std::string> all(count);
  for (size_t r = 0; r < count; ++r) {
    for (size_t i = begins[r]; i < begins[r + 1]; ++i) {
      all[r] += static_cast<char>(static_cast<unsigned char>(bytes[i]));
    }
  }
  return all;
}

bool was_started_by_mpirun() { return processes_of_mpirun() > 0; }

std::unique_ptr<Collective> join_processes() {
  if (processes_of_mpirun() <= 1) return std::make_unique<Collective>();
  return std::make_unique<MpiCollective>(load_module());
}

}  // namespace halftone
