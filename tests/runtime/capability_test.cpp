#include "halftone/runtime/capability.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>

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

// Held to what the system and the processor say when they are asked in another way.
TEST(Devices, ThisMachineIsDescribed) {
  const CpuInfo cpu = cpu_info();
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mine, &mine), 0);
#if defined(_OPENMP)
  EXPECT_EQ(cpu.threads, CPU_COUNT(&mine));
#else
  EXPECT_EQ(cpu.threads, 1);
#endif
  struct sysinfo memory{};
  ASSERT_EQ(::sysinfo(&memory), 0);
  EXPECT_EQ(cpu.memory_bytes, static_cast<int64_t>(memory.totalram) * memory.mem_unit);
  EXPECT_GT(available_memory(), 0);
  EXPECT_LE(available_memory(), cpu.memory_bytes);
  EXPECT_EQ(cpu_device().name, cpu.name);
  EXPECT_EQ(cpu_device().device, Device{});
#if defined(__x86_64__)
  EXPECT_NE(cpu.name, "");
  const auto has = [&](const char* feature) {
    return std::count(cpu.features.begin(), cpu.features.end(), feature) == 1;
  };
  EXPECT_EQ(has("sse4_1"), __builtin_cpu_supports("sse4.1") != 0);
  EXPECT_EQ(has("avx2"), __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(has("fma"), __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(has("avx512f"), __builtin_cpu_supports("avx512f") != 0);
#endif
}

}  // namespace
}  // namespace halftone
