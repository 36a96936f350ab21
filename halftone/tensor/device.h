// Where a tensor's bytes live.
#pragma once

#include <cstdint>
#include <string>

namespace halftone {

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;  // which GPU

  std::string str() const {
    return kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(index);
  }
  bool operator==(const Device&) const = default;
};

}  // namespace halftone
