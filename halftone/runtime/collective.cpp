#include "halftone/runtime/collective.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "halftone/base/error.h"
#include "halftone/runtime/mpi_module.h"

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
  explicit MpiCollective(const MpiModule& module) : mpi_(module), place_(module.join()) {}
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
  bool stopping(bool own) override { return left_ ? own : mpi_.stopping(own); }
  void leave() override {
    if (!left_) mpi_.leave();
    left_ = true;
  }
  void give_up() override {
    if (!left_) left_ = mpi_.give_up();
  }

 private:
  void add(void* values, size_t count, bool doubles, const Stop& stop) const {
    const auto ask = [](const void* of) {
      const Stop& wanted = *static_cast<const Stop*>(of);
      return wanted && wanted();
    };
    if (mpi_.sum(values, count, doubles, ask, &stop)) return;
    throw Error(ErrorCode::kCancelled, "", "interrupted while waiting for other processes");
  }

  const MpiModule& mpi_;
  MpiModule::Place place_;
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
