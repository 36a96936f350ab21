// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random
// numbers as a pure function of (seed, stream, index), so any thread, lane or device makes the
// same ones in any order. Callable on host and device.
#pragma once

#include <cstdint>

#include "halftone/base/host_device.h"

namespace halftone {

struct PhiloxBlock {
  uint32_t word[4];
};

struct PhiloxKey {
  uint64_t seed = 0;
  uint64_t stream = 0;  // independent sequences of one seed
};

namespace philox {
inline constexpr uint32_t kMultiply0 = 0xD2511F53u;
inline constexpr uint32_t kMultiply1 = 0xCD9E8D57u;
inline constexpr uint32_t kWeyl0 = 0x9E3779B9u;  // golden ratio
inline constexpr uint32_t kWeyl1 = 0xBB67AE85u;  // sqrt(3) - 1
inline constexpr int kRounds = 10;
}  // namespace philox

// A key as four words, for who passes it through memory of 32-bit numbers.
HT_HOST_DEVICE constexpr PhiloxKey philox_key(const int32_t* words) {
  const auto pair = [](int32_t low, int32_t high) {
    return uint64_t{static_cast<uint32_t>(high)} << 32 | static_cast<uint32_t>(low);
  };
  return {pair(words[0], words[1]), pair(words[2], words[3])};
}

// The 10 rounds over a raw 128-bit counter and 64-bit key.
HT_HOST_DEVICE constexpr PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < philox::kRounds; ++round) {
    const uint64_t product0 = uint64_t{philox::kMultiply0} * c0;
    const uint64_t product1 = uint64_t{philox::kMultiply1} * c2;
    const uint32_t next0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    const uint32_t next2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(product1);
    c3 = static_cast<uint32_t>(product0);
    c0 = next0;
    c2 = next2;
    key0 += philox::kWeyl0;
    key1 += philox::kWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// The four words with indices 4*block .. 4*block+3 of a key's sequence.
HT_HOST_DEVICE constexpr PhiloxBlock philox_block(PhiloxKey key, uint64_t block) {
  const PhiloxBlock counter = {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                static_cast<uint32_t>(key.stream),
                                static_cast<uint32_t>(key.stream >> 32)}};
  return philox4x32(counter, static_cast<uint32_t>(key.seed),
                    static_cast<uint32_t>(key.seed >> 32));
}

// The word with a given index.
HT_HOST_DEVICE constexpr uint32_t philox_word(PhiloxKey key, uint64_t index) {
  return philox_block(key, index / 4).word[index % 4];
}

}  // namespace halftone
