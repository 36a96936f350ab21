// Vectorized decoding and random words, for each instruction set.
#include <array>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/kernels/cpu/simd_spans.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halftone/kernels/cpu/simd_decode.cpp"
#include "hwy/foreach_target.h"  // compiles this file once per target
//
#include "halftone/kernels/cpu/simd_codecs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halftone::simd::HWY_NAMESPACE {

inline HWY_ATTR void store(VF value, float* y) { hn::StoreU(value, DF(), y); }
inline HWY_ATTR void store(VF value, bf16* y) { store_bf16(value, y); }

// Eight nibbles to eight bytes, the low nibble of each byte first.
inline uint64_t unpack_nibbles(const uint8_t* packed) {
  uint32_t four = 0;
  std::memcpy(&four, packed, 4);
  uint64_t x = four;
  x = (x | (x << 16)) & 0x0000FFFF0000FFFFull;
  x = (x | (x << 8)) & 0x00FF00FF00FF00FFull;
  return (x | (x << 4)) & 0x0F0F0F0F0F0F0F0Full;
}

// Sixteen values from 16 bytes of codes, or 8 of packed E2M1.
template <class F, bool kGlobal, class Out>
HWY_ATTR HWY_INLINE void decode_16(const uint8_t* codes, VF scale, VF global, Out* y) {
  HWY_ALIGN uint8_t bytes[16];
  if constexpr (F::kSignBit != 0x80) {
    const std::array<uint64_t, 2> halves = {unpack_nibbles(codes), unpack_nibbles(codes + 4)};
    std::memcpy(bytes, halves.data(), 16);
    codes = bytes;
  }
  const hn::Rebind<uint8_t, DF> d8;
  for (size_t i = 0; i < 16; i += hn::Lanes(DF())) {
    const VI code = hn::PromoteTo(DI(), hn::LoadU(d8, codes + i));
    VF value = hn::Mul(decode_lanes<F>(code), scale);
    if constexpr (kGlobal) value = hn::Mul(value, global);
    store(value, y + i);
  }
}

template <class F, bool kGlobal, class Out>
HWY_ATTR void decode_of(const uint8_t* codes, int64_t n, const Decode& how, Out* y) {
  constexpr int kBytes16 = F::kSignBit == 0x80 ? 16 : 8;
  const VF global = hn::Set(DF(), how.global);
  const int shift = how.block == 16 ? 0 : how.block == 32 ? 1 : 63;  // groups of 16 to a scale
  const int64_t groups = n / 16;
  for (int64_t g = 0; g < groups; ++g) {
    const VF scale = hn::Set(DF(), how.scales[g >> shift]);
    decode_16<F, kGlobal>(codes + g * kBytes16, scale, global, y + g * 16);
  }
  const int64_t rest = n - groups * 16;
  if (rest == 0) return;
  std::array<uint8_t, 16> padded{};
  std::array<Out, 16> out{};
  const auto bytes = static_cast<size_t>(F::kSignBit == 0x80 ? rest : (rest + 1) / 2);
  std::memcpy(padded.data(), codes + groups * kBytes16, bytes);
  decode_16<F, kGlobal>(padded.data(), hn::Set(DF(), how.scales[groups >> shift]), global,
                        out.data());
  std::memcpy(y + groups * 16, out.data(), static_cast<size_t>(rest) * sizeof(Out));
}

template <class Out>
void decode_to(const uint8_t* codes, int64_t n, const Decode& how, Out* y) {
  switch (how.element) {
    case ElementType::kE4M3:
      return decode_of<E4M3, false>(codes, n, how, y);
    case ElementType::kE5M2:
      return decode_of<E5M2, false>(codes, n, how, y);
    default:
      return decode_of<E2M1, true>(codes, n, how, y);
  }
}

void DecodeSpan(const uint8_t* codes, int64_t size, const Decode& how, DType dtype, void* y) {
  dtype == DType::kBF16 ? decode_to(codes, size, how, static_cast<bf16*>(y))
                        : decode_to(codes, size, how, static_cast<float*>(y));
}

// High and low halves of 32 x 32 bit products, lane by lane.
struct Product {
  hn::Vec<DU> high, low;
};
inline HWY_ATTR Product multiply(hn::Vec<DU> a, uint32_t factor) {
  const hn::Repartition<uint64_t, DU> d64;
  const auto f = hn::Set(DU(), factor);
  const auto even = hn::MulEven(a, f);
  const auto odd = hn::MulEven(hn::BitCast(DU(), hn::ShiftRight<32>(hn::BitCast(d64, a))), f);
  const auto low_mask = hn::Set(d64, 0xFFFFFFFFull);
  const auto high = hn::Or(hn::ShiftRight<32>(even), hn::AndNot(low_mask, odd));
  const auto low = hn::Or(hn::And(even, low_mask), hn::ShiftLeft<32>(odd));
  return {hn::BitCast(DU(), high), hn::BitCast(DU(), low)};
}

// One Philox block per lane; blocks are consecutive, so their words interleave.
HWY_ATTR void RandomWords(PhiloxKey key, uint64_t first, int64_t count, uint32_t* words) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DU()));
  for (int64_t i = 0; i < count; i += 4 * lanes) {
    const uint64_t block = (first + static_cast<uint64_t>(i)) / 4;
    // first is a multiple of 64, so no carry into the high word happens inside a vector.
    auto c0 = hn::Add(hn::Set(DU(), static_cast<uint32_t>(block)), hn::Iota(DU(), 0));
    auto c1 = hn::Set(DU(), static_cast<uint32_t>(block >> 32));
    auto c2 = hn::Set(DU(), static_cast<uint32_t>(key.stream));
    auto c3 = hn::Set(DU(), static_cast<uint32_t>(key.stream >> 32));
    auto key0 = static_cast<uint32_t>(key.seed);
    auto key1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < philox::kRounds; ++round) {
      const Product p0 = multiply(c0, philox::kMultiply0);
      const Product p1 = multiply(c2, philox::kMultiply1);
      c0 = hn::Xor(hn::Xor(p1.high, c1), hn::Set(DU(), key0));
      c2 = hn::Xor(hn::Xor(p0.high, c3), hn::Set(DU(), key1));
      c1 = p1.low;
      c3 = p0.low;
      key0 += philox::kWeyl0;
      key1 += philox::kWeyl1;
    }
    hn::StoreInterleaved4(c0, c1, c2, c3, DU(), words + i);
  }
}

}  // namespace halftone::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halftone::simd {

HWY_EXPORT(DecodeSpan);
HWY_EXPORT(RandomWords);

void decode(const uint8_t* codes, int64_t size, const Decode& how, DType dtype, void* y) {
  HT_ASSERT(how.block == 0 || how.block == 16 || how.block == 32);
  HWY_DYNAMIC_DISPATCH(DecodeSpan)(codes, size, how, dtype, y);
}

void random_words(PhiloxKey key, uint64_t first, int64_t count, uint32_t* words) {
  HT_ASSERT(first % 64 == 0);
  HWY_DYNAMIC_DISPATCH(RandomWords)(key, first, count, words);
}

}  // namespace halftone::simd
#endif
