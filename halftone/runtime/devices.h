// The devices of this machine. GPUs are asked for through the driver, loaded at run time, so that
// a build without CUDA still sees them and says what is missing.
#pragma once

#include <string>
#include <vector>

#include "halftone/runtime/capability.h"

namespace halftone {

struct CpuInfo {
  std::string name;
  int threads = 1;
  std::vector<std::string> features;  // instruction sets that matter here
  std::string kernels;                // the table of kernels in use
  int64_t memory_bytes = 0;
};

struct GpuList {
  std::vector<DeviceInfo> gpus;
  std::string driver;  // "13.0", empty without a driver
  std::string note;    // why there are none, if there are none
};

CpuInfo cpu_info();
GpuList list_gpus();
DeviceInfo cpu_device();

// Memory that a process can still take without swapping: what the machine has left, or what its
// control group allows if that is less.
int64_t available_memory();
// Memory of this process that is not a file's, in bytes.
int64_t anonymous_memory();
// To the system, what this process no longer uses: it would be taken for memory in use.
void give_back_freed_memory();

// Backends that this build can run on.
std::vector<std::string> backends();

}  // namespace halftone
