#include "halftone/runtime/capability.h"

#include <gtest/gtest.h>

#include "halftone/runtime/devices.h"

namespace halftone {
namespace {

DeviceInfo gpu(int capability) {
  return {{DeviceKind::kCuda, 0}, "test", capability / 10, capability % 10, 0};
}
Support on(int capability, const Format& format) {
  return format_support(gpu(capability), format).support;
}

TEST(Capability, EveryGenerationAndFormat) {
  constexpr auto N = Support::kNative, E = Support::kEmulated, U = Support::kUnavailable;
  struct Row {
    int capability;
    Support fp32, bf16, fp8, fp8_tensor, mxfp8, nvfp4;
  };
  const Row rows[] = {
      {70, U, U, U, U, U, U},  {75, N, E, E, E, E, E},  {80, N, N, E, E, E, E},
      {86, N, N, E, E, E, E},  {89, N, N, N, N, E, E},  {90, N, N, N, N, E, E},
      {100, N, N, N, N, N, N}, {103, N, N, N, N, N, N}, {120, N, N, N, N, N, N},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(on(row.capability, formats::fp32), row.fp32) << row.capability;
    EXPECT_EQ(on(row.capability, formats::bf16), row.bf16) << row.capability;
    EXPECT_EQ(on(row.capability, formats::fp8), row.fp8) << row.capability;
    EXPECT_EQ(on(row.capability, formats::fp8_tensor), row.fp8_tensor) << row.capability;
    EXPECT_EQ(on(row.capability, formats::mxfp8), row.mxfp8) << row.capability;
    EXPECT_EQ(on(row.capability, formats::nvfp4), row.nvfp4) << row.capability;
  }
}

TEST(Capability, TheCpuEmulatesEverythingBelowFloat) {
  for (const Format& format : all_formats()) {
    const auto result = format_support({}, format);
    EXPECT_EQ(result.support, format == formats::fp32 ? Support::kNative : Support::kEmulated)
        << format.name;
    EXPECT_FALSE(result.why.empty());
  }
}

TEST(Capability, TwoDifferentGpusInOneMachineAreJudgedApart) {
  DeviceInfo first = gpu(80), second = gpu(100);
  second.device.index = 1;
  EXPECT_EQ(format_support(first, formats::nvfp4).support, Support::kEmulated);
  EXPECT_EQ(format_support(second, formats::nvfp4).support, Support::kNative);
}

TEST(Devices, ThisMachineIsDescribed) {
  const CpuInfo cpu = cpu_info();
  EXPECT_GE(cpu.threads, 1);
  EXPECT_GT(cpu.memory_bytes, 0);
  EXPECT_FALSE(cpu.kernels.empty());
  const GpuList list = list_gpus();
  EXPECT_EQ(list.gpus.empty(), !list.note.empty());  // either GPUs or why there are none
  for (const DeviceInfo& info : list.gpus) EXPECT_GT(info.capability(), 10);
}

}  // namespace
}  // namespace halftone
