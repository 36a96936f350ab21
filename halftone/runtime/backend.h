// Where a run computes: a table of kernels and what they need.
#pragma once

#include <memory>
#include <string>

#include "halftone/kernels/kernels.h"
#include "halftone/runtime/capability.h"

namespace halftone {

struct Backend {
  DeviceInfo info;
  const Kernels* kernels = nullptr;
  std::shared_ptr<DeviceContext> device;  // null for the CPU
  std::string fallback;  // why it is not the one that was asked for; empty where it is

  Stream stream(int threads) const { return {threads, device.get()}; }
};

// asked: "auto" (a GPU where there is one that this build can use), "cpu", "cuda" or "cuda:N". What
// cannot be had is the CPU, and says why; the number of a GPU that is not there is an Error.
Backend choose_backend(const std::string& asked);

}  // namespace halftone
