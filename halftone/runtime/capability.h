// What a device can do with a format, as a pure function of the two: tested for every GPU
// generation without owning one, and asked per device, since one machine may hold different ones.
#pragma once

#include <string>
#include <string_view>

#include "halftone/numerics/format.h"
#include "halftone/tensor/device.h"

namespace halftone {

// What is known of a device without touching it.
struct DeviceInfo {
  Device device;
  std::string name;
  int major = 0;  // CUDA compute capability
  int minor = 0;
  int64_t memory_bytes = 0;

  int capability() const { return major * 10 + minor; }  // 90 for sm_90
};

enum class Support { kNative, kEmulated, kUnavailable };

struct FormatSupport {
  Support support;
  std::string_view why;
};

// Native: the hardware multiplies in this format. Emulated: the same numbers through wider
// arithmetic, exact up to the order of accumulation. Unavailable: not at all.
FormatSupport format_support(const DeviceInfo& device, const Format& format);

std::string_view to_string(Support support);

}  // namespace halftone
