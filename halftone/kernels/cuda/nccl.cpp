// A DeviceGroup of NCCL: one GPU per process, sums on a stream beside the one that computes.
#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "halftone/kernels/cuda/backend.h"
#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/nccl_library.h"

#if defined(HALFTONE_NCCL)

namespace halftone::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// All come to a group at the same time; between steps the first may write and draw pictures.
constexpr std::chrono::minutes kToJoin{2}, kToSum{30};

void* open_nccl() {
  const std::string name = "libnccl.so." + std::to_string(NCCL_MAJOR);
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    library = ::dlopen((HALFTONE_NCCL_LIBRARIES "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    throw Error(ErrorCode::kUnsupported, name, "could not be opened ({})", ::dlerror());
  }
  return library;
}

template <class Function>
void find_in_nccl(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw Error(ErrorCode::kUnsupported, name, "is not in this NCCL ({})", ::dlerror());
  }
}

void check_nccl(ncclResult_t status, const char* what) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  throw Error(ErrorCode::kUnsupported, "NCCL", "{} failed: {}; another process may have ended",
              what, nccl().ncclGetErrorString(status));
}

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(Context& context, const GroupPlace& place, const Stop& stop) : context_(context) {
    ncclUniqueId id{};
    if (place.key.size() != sizeof(id)) {
      throw Error(ErrorCode::kInvalidInput, "NCCL", "the group's key is of another length");
    }
    std::memcpy(&id, place.key.data(), sizeof(id));
    const DeviceGuard guard(&context_);
    int least = 0, greatest = 0;
    HT_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    HT_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
    HT_CUDA(cudaEventCreateWithFlags(&launched_, cudaEventDisableTiming));
    HT_CUDA(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // one that never comes is not waited for for ever
    stop_ = stop;
    try {
      check_nccl(nccl().ncclCommInitRankConfig(&group_, place.size, id, place.rank, &config),
                 "joining");
      settle("joining", kToJoin);
    } catch (...) {
      abandon();
      release();
      throw;
    }
  }
  ~NcclGroup() override {
    if (group_ != nullptr) leave();
    release();
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  void begin_sum(float* values, int64_t count) override {
    const DeviceGuard guard(&context_);
    need_group();
    HT_CUDA(cudaEventRecord(launched_, context_.stream()));
    HT_CUDA(cudaStreamWaitEvent(stream_, launched_, 0));
    const size_t at = used_ * 2;
    used_ += 1;
    while (marks_.size() < used_ * 2) {
      cudaEvent_t event = nullptr;
      HT_CUDA(cudaEventCreate(&event));
      marks_.push_back(event);
    }
    HT_CUDA(cudaEventRecord(marks_[at], stream_));
    ended_by_failure([&] {
      check_nccl(nccl().ncclAllReduce(values, values, static_cast<size_t>(count), ncclFloat,
                                      ncclSum, group_, stream_),
                 "a sum");
      settle("a sum", kToJoin);  // the first one connects
    });
    HT_CUDA(cudaEventRecord(marks_[at + 1], stream_));
  }

  void finish(const Stop& stop) override {
    const DeviceGuard guard(&context_);
    need_group();
    stop_ = stop;
    HT_CUDA(cudaEventRecord(done_, stream_));
    ended_by_failure([&] { await_sums(); });
    HT_CUDA(cudaStreamWaitEvent(context_.stream(), done_, 0));
    seconds_ = 0;
    for (size_t i = 0; i < used_; ++i) {
      float milliseconds = 0;
      HT_CUDA(cudaEventElapsedTime(&milliseconds, marks_[2 * i], marks_[2 * i + 1]));
      seconds_ += milliseconds * 1e-3;
    }
    used_ = 0;
  }

  double seconds() const override { return seconds_; }

  // Kernels that wait for other GPUs end, too.
  void abandon() noexcept override {
    if (group_ != nullptr) nccl().ncclCommAbort(group_);
    group_ = nullptr;
  }

 private:
  void need_group() const {
    if (group_ != nullptr) return;
    throw Error(ErrorCode::kUnsupported, "NCCL", "the processes are not together any more");
  }

  template <class Work>
  void ended_by_failure(const Work& work) {
    try {
      work();
    } catch (...) {
      abandon();
      throw;
    }
  }

  // An Error where it has taken too long, or is not to go on.
  void check_wait(Clock::time_point start, std::chrono::minutes most, const char* what) const {
    if (stop_ && stop_()) {
      throw Error(ErrorCode::kCancelled, "", "interrupted while waiting for other processes");
    }
    if (Clock::now() - start < most) return;
    throw Error(ErrorCode::kUnsupported, "NCCL",
                "{} was waited for for {} minutes: another process may have ended", what,
                most.count());
  }

  // Until the group has done on the host what it was called for.
  void settle(const char* what, std::chrono::minutes most) const {
    const auto start = Clock::now();
    for (;;) {
      ncclResult_t state = ncclSuccess;
      check_nccl(nccl().ncclCommGetAsyncError(group_, &state), what);
      if (state == ncclSuccess) return;
      check_nccl(state, what);
      check_wait(start, most, what);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  void await_sums() const {
    const auto start = Clock::now();
    for (int tries = 0;; ++tries) {
      const cudaError_t status = cudaEventQuery(done_);
      if (status == cudaSuccess) return;
      if (status != cudaErrorNotReady) HT_CUDA(status);
      cudaGetLastError();  // "not ready" is no error of the next launch
      constexpr int kEager = 1000;
      if (tries < kEager) continue;
      ncclResult_t state = ncclSuccess;
      check_nccl(nccl().ncclCommGetAsyncError(group_, &state), "a sum");
      check_nccl(state, "a sum");
      check_wait(start, kToSum, "a sum");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // All leave; where one does not come, it is not waited for.
  void leave() noexcept {
    try {
      const DeviceGuard guard(&context_);
      stop_ = {};
      check_nccl(nccl().ncclCommFinalize(group_), "leaving");
      settle("leaving", std::chrono::minutes(1));
      nccl().ncclCommDestroy(group_);
      group_ = nullptr;
    } catch (const Error&) {
      abandon();
    }
  }

  void release() noexcept {
    cudaSetDevice(context_.device().index);
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    for (const cudaEvent_t event : marks_) cudaEventDestroy(event);
    for (const cudaEvent_t event : {launched_, done_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Context& context_;
  Stop stop_;
  ncclComm_t group_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t launched_ = nullptr, done_ = nullptr;
  std::vector<cudaEvent_t> marks_;  // before and after each sum
  size_t used_ = 0;                 // sums that were begun
  double seconds_ = 0;
};

}  // namespace

const Nccl& nccl() {
  static const Nccl functions = [] {
    void* library = open_nccl();
    Nccl made;
#define HT_FIND(name) find_in_nccl(library, #name, made.name);
    HT_NCCL_FUNCTIONS(HT_FIND)
#undef HT_FIND
    return made;
  }();
  return functions;
}

}  // namespace halftone::cuda

namespace halftone {

std::string why_no_device_group(const DeviceContext&) {
  try {
    cuda::nccl();
    return "";
  } catch (const Error& error) {
    return fmt::format("there is no NCCL: {}", error.what());
  }
}

std::string new_group_key(const DeviceContext& device) {
  const DeviceGuard guard(&device);
  ncclUniqueId id{};
  cuda::check_nccl(cuda::nccl().ncclGetUniqueId(&id), "a new group");
  return {reinterpret_cast<const char*>(&id), sizeof(id)};
}

std::unique_ptr<DeviceGroup> join_device_group(DeviceContext& device, const GroupPlace& place,
                                               const DeviceGroup::Stop& stop) {
  return std::make_unique<cuda::NcclGroup>(static_cast<cuda::Context&>(device), place, stop);
}

}  // namespace halftone

#else

namespace halftone {
namespace {

constexpr const char* kNoNccl = "this build has no NCCL, whose header was not there";

}  // namespace

std::string why_no_device_group(const DeviceContext&) { return kNoNccl; }
std::string new_group_key(const DeviceContext&) {
  throw Error(ErrorCode::kUnsupported, "NCCL", "{}", kNoNccl);
}
std::unique_ptr<DeviceGroup> join_device_group(DeviceContext&, const GroupPlace&,
                                               const DeviceGroup::Stop&) {
  throw Error(ErrorCode::kUnsupported, "NCCL", "{}", kNoNccl);
}

}  // namespace halftone

#endif
