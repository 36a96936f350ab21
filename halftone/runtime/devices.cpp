#include "halftone/runtime/devices.h"

#include <dlfcn.h>
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>

#include "halftone/base/threads.h"
#include "halftone/kernels/cuda/backend.h"

namespace halftone {
namespace {

// The value of the first line "key : value" of /proc/cpuinfo.
std::string cpuinfo_value(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return {};
}

// The part of CUDA's driver API that lists devices, by its stable C names and values.
class Driver {
 public:
  Driver() : library_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), ::dlclose) {
    if (!library_) return;
    init_ = load<int(unsigned)>("cuInit");
    version_ = load<int(int*)>("cuDriverGetVersion");
    count_ = load<int(int*)>("cuDeviceGetCount");
    device_ = load<int(int*, int)>("cuDeviceGet");
    name_ = load<int(char*, int, int)>("cuDeviceGetName");
    memory_ = load<int(size_t*, int)>("cuDeviceTotalMem_v2");
    attribute_ = load<int(int*, int, int)>("cuDeviceGetAttribute");
  }

  bool loaded() const { return attribute_ != nullptr && memory_ != nullptr && name_ != nullptr; }
  int init() const { return init_(0); }

  std::string version() const {
    int number = 0;
    if (version_(&number) != 0) return {};
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  }

  std::vector<DeviceInfo> devices() const {
    std::vector<DeviceInfo> found;
    int count = 0;
    if (count_(&count) != 0) return found;
    constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
    for (int i = 0; i < count; ++i) {
      DeviceInfo info;
      info.device = {DeviceKind::kCuda, i};
      int handle = 0;
      std::array<char, 256> name{};
      size_t memory = 0;
      if (device_(&handle, i) != 0 || name_(name.data(), name.size() - 1, handle) != 0 ||
          memory_(&memory, handle) != 0 || attribute_(&info.major, kMajor, handle) != 0 ||
          attribute_(&info.minor, kMinor, handle) != 0) {
        continue;
      }
      info.name = name.data();
      info.memory_bytes = static_cast<int64_t>(memory);
      found.push_back(info);
    }
    return found;
  }

 private:
  template <class Function>
  Function* load(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(library_.get(), name));
  }

  std::unique_ptr<void, int (*)(void*)> library_;
  int (*init_)(unsigned) = nullptr;
  int (*version_)(int*) = nullptr;
  int (*count_)(int*) = nullptr;
  int (*device_)(int*, int) = nullptr;
  int (*name_)(char*, int, int) = nullptr;
  int (*memory_)(size_t*, int) = nullptr;
  int (*attribute_)(int*, int, int) = nullptr;
};

}  // namespace

int64_t available_memory() {
  // The number after a word in a file of "word number" lines; -1 where there is none.
  const auto number = [](const char* path, const std::string& wanted) {
    std::ifstream file(path);
    std::string word;
    for (int64_t value = -1; file >> word;) {
      if (word == wanted && file >> value) return value;
    }
    return int64_t{-1};
  };
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  const int64_t machine = number("/proc/meminfo", "MemAvailable:");
  const int64_t available = machine < 0 ? kUnknown : machine * 1024;
  // Cached files count against the group's limit, but give way.
  int64_t most = -1;
  std::ifstream("/sys/fs/cgroup/memory.max") >> most;  // "max" leaves 0
  const int64_t used = number("/sys/fs/cgroup/memory.stat", "anon");
  if (most <= 0 || used < 0) return available;
  return std::min(available, std::max<int64_t>(0, most - used));
}

int64_t anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

void give_back_freed_memory() { ::malloc_trim(0); }

std::vector<std::string> backends() {
  if (has_cuda()) return {"cpu", "cuda"};
  return {"cpu"};
}

CpuInfo cpu_info() {
  CpuInfo info;
  info.name = cpuinfo_value("model name");
  info.threads = hardware_threads();
  info.kernels = cpu_kernels().name;
  info.memory_bytes = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  std::istringstream flags(cpuinfo_value("flags"));
  constexpr std::array kInteresting = {"sse4_1",      "avx2",        "fma",        "f16c",
                                       "avx512f",     "avx512bw",    "avx512vbmi", "avx512_vnni",
                                       "avx512_bf16", "avx512_fp16", "amx_bf16",   "amx_int8"};
  for (std::string flag; flags >> flag;) {
    for (const char* known : kInteresting) {
      if (flag == known) info.features.push_back(flag);
    }
  }
  return info;
}

GpuList list_gpus() {
  const Driver driver;
  if (!driver.loaded()) return {{}, {}, "no NVIDIA driver (libcuda.so.1) on this machine"};
  if (const int code = driver.init(); code != 0) {
    return {{},
            driver.version(),
            "the NVIDIA driver did not start (error " + std::to_string(code) + ")"};
  }
  GpuList list{driver.devices(), driver.version(), {}};
  if (list.gpus.empty()) list.note = "the NVIDIA driver lists no GPU";
  return list;
}

DeviceInfo cpu_device() { return {{DeviceKind::kCpu, 0}, cpuinfo_value("model name"), 0, 0, 0}; }

}  // namespace halftone
