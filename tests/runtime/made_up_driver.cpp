#include "tests/runtime/made_up_driver.h"

#include <cstdio>

using halftone::test::MadeUpGpu;

namespace {

constexpr int kInvalidDevice = 101;
constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
constexpr int kFirstHandle = 40;         // a handle is not an index

}  // namespace

extern "C" {

halftone::test::MadeUpMachine made_up_machine;

int cuInit(unsigned) { return made_up_machine.start_error; }
int cuDriverGetVersion(int* version) {
  *version = made_up_machine.version;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = made_up_machine.count;
  return 0;
}
int cuDeviceGet(int* handle, int index) {
  if (index < 0 || index >= made_up_machine.count) return kInvalidDevice;
  if (!made_up_machine.gpus[index].answers) return kInvalidDevice;
  *handle = kFirstHandle + index;
  return 0;
}
int cuDeviceGetName(char* name, int size, int handle) {
  std::snprintf(name, static_cast<size_t>(size), "%s",
                made_up_machine.gpus[handle - kFirstHandle].name);
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int handle) {
  *bytes = made_up_machine.gpus[handle - kFirstHandle].memory;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int handle) {
  const MadeUpGpu& gpu = made_up_machine.gpus[handle - kFirstHandle];
  if (attribute != kMajor && attribute != kMinor) return 1;
  *value = attribute == kMajor ? gpu.major : gpu.minor;
  return 0;
}
}
