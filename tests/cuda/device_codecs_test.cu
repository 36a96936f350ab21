// The codecs and scale rules compiled for the device give the same bits as on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tests/cuda/device_codecs_kernels.h"

namespace halftone::test {
namespace {

class DeviceCodecs : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (gpu_present()) return;
    // No GPU on this machine: ctest counts this exit code as skipped, not as passed.
    std::fprintf(stderr, "no GPU that these were compiled for: the device codecs were not run\n");
    std::_Exit(77);
  }

  static void expect_same(const std::vector<float>& x) {
    const std::vector<Results> results = compute_on_device(x);
    size_t wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (results[i] == compute(x[i], i)) continue;
      if (++wrong <= 5) ADD_FAILURE() << "device and host differ for " << x[i] << " at " << i;
    }
    EXPECT_EQ(wrong, 0u) << "of " << x.size();
  }
};

TEST_F(DeviceCodecs, EveryBf16Value) {
  std::vector<float> x(65536);
  for (uint32_t bits = 0; bits < 65536; ++bits)
    x[bits] = to_float(bf16{static_cast<uint16_t>(bits)});
  expect_same(x);
}

TEST_F(DeviceCodecs, EveryLowHalfWord) {  // all codes, all fp16 values
  std::vector<float> x(65536);
  for (uint32_t bits = 0; bits < 65536; ++bits) x[bits] = bit_cast<float>(0x3F800000u + bits);
  expect_same(x);
}

TEST_F(DeviceCodecs, FourMillionFloatsOfAnyBits) {
  std::vector<float> x(4 << 20);
  for (size_t i = 0; i < x.size(); ++i) x[i] = bit_cast<float>(philox_word({1, 1}, i));
  expect_same(x);
}

TEST_F(DeviceCodecs, TiesAndTheirNeighboursInEveryFormat) {
  std::vector<float> x;
  const auto add = [&](float low, float high) {
    const float tie = low + (high - low) / 2;
    for (const float v : {low, tie, std::nextafter(tie, low), std::nextafter(tie, high)}) {
      x.push_back(v);
      x.push_back(-v);
    }
  };
  for (int code = 0; code < 0x7E; ++code) add(decode<E4M3>(code), decode<E4M3>(code + 1));
  for (int code = 0; code < 0x7B; ++code) add(decode<E5M2>(code), decode<E5M2>(code + 1));
  for (int code = 0; code < 7; ++code) add(decode<E2M1>(code), decode<E2M1>(code + 1));
  for (int code = 0; code < 254; ++code) add(decode_e8m0(code), decode_e8m0(code + 1));
  for (const float v : {464.0f, 464.01f, 61439.0f, 61440.0f, 1e38f, 3.4e38f, 1e-45f})
    x.push_back(v);
  expect_same(x);
}

}  // namespace
}  // namespace halftone::test
