// Our codecs against the CUDA toolkit's conversion functions, on the host: needs nvcc, but no GPU.
#include <cuda_bf16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <cmath>

#include "halftone/base/random.h"
#include "halftone/numerics/bf16.h"
#include "halftone/numerics/minifloat.h"
#include "halftone/numerics/scale_rules.h"

namespace halftone {
namespace {

void expect_same(float x) {
  ASSERT_EQ(encode<E4M3>(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)) << x;
  ASSERT_EQ(encode<E5M2>(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2)) << x;
  ASSERT_EQ(encode<E5M2>(x, Overflow::kSpecial), __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E5M2))
      << x;
  const uint8_t special = encode<E4M3>(x, Overflow::kSpecial);
  const uint8_t theirs = __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E4M3);
  // Both overflow to NaN; the toolkit drops the sign on the host.
  ASSERT_EQ((special & 0x7F) == 0x7F ? 0x7F : special, (theirs & 0x7F) == 0x7F ? 0x7F : theirs)
      << x;
  ASSERT_EQ(encode<E2M1>(x), __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest) & 0xF) << x;
  if (!std::signbit(x)) {
    ASSERT_EQ(encode_e8m0(x), __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf)) << x;
  }
  const __nv_bfloat16_raw raw = __float2bfloat16_rn(x);
  ASSERT_EQ(to_bf16(x).bits, raw.x) << x;
}

TEST(ToolkitCodecs, EveryBf16Value) {
  for (uint32_t bits = 0; bits < 65536; ++bits)
    expect_same(to_float(bf16{static_cast<uint16_t>(bits)}));
}

TEST(ToolkitCodecs, FourMillionFloatsOfAnyBits) {
  for (uint64_t i = 0; i < 4'000'000; ++i) expect_same(bit_cast<float>(philox_word({77, 0}, i)));
}

TEST(ToolkitCodecs, FloatsAroundTheRangeOfTheFormats) {
  for (uint64_t i = 0; i < 2'000'000; ++i) {
    const double u = philox_word({78, 0}, i) * 0x1p-32;
    const float x = static_cast<float>(std::exp2(u * 36 - 20));
    expect_same(philox_word({78, 1}, i) % 2 == 0 ? x : -x);
  }
}

TEST(ToolkitCodecs, EveryCodeDecodes) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const float e4m3 = __half2float(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3));
    const float e5m2 = __half2float(__nv_cvt_fp8_to_halfraw(byte, __NV_E5M2));
    if (std::isnan(e4m3)) {
      EXPECT_TRUE(std::isnan(decode<E4M3>(byte))) << code;
    } else {
      EXPECT_EQ(decode<E4M3>(byte), e4m3) << code;
    }
    if (std::isnan(e5m2)) {
      EXPECT_TRUE(std::isnan(decode<E5M2>(byte))) << code;
    } else {
      EXPECT_EQ(decode<E5M2>(byte), e5m2) << code;
    }
    if (code < 16)
      EXPECT_EQ(decode<E2M1>(byte), __half2float(__nv_cvt_fp4_to_halfraw(byte, __NV_E2M1)));
    const __nv_bfloat16_raw e8m0 = __nv_cvt_e8m0_to_bf16raw(byte);
    if (code < 255) EXPECT_EQ(decode_e8m0(byte), to_float(bf16{e8m0.x})) << code;
  }
}

}  // namespace
}  // namespace halftone
