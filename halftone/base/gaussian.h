// Normally distributed numbers as a pure function of (seed, stream, index): the CPU and a device
// make the same ones, but for the last bit of a logarithm or a sine.
#pragma once

#include <cmath>
#include <span>

#include "halftone/base/random.h"

namespace halftone {

struct GaussianPair {
  float first, second;
};

// Numbers 2 * pair and 2 * pair + 1 of a key's sequence (Box-Muller).
HT_HOST_DEVICE inline GaussianPair gaussian_pair(PhiloxKey key, uint64_t pair) {
  constexpr double kTwoPi = 6.283185307179586;
  const PhiloxBlock block = philox_block(key, pair);
  const double radius = sqrt(-2 * log((block.word[0] + 0.5) * 0x1p-32));
  const double angle = kTwoPi * (block.word[1] + 0.5) * 0x1p-32;
  return {static_cast<float>(radius * cos(angle)), static_cast<float>(radius * sin(angle))};
}

// A key as the four words that philox_key reads.
inline void put_key(const PhiloxKey& key, std::span<int32_t> words) {
  const uint64_t halves[] = {key.seed, key.stream};
  for (size_t i = 0; i < 2; ++i) {
    words[2 * i] = static_cast<int32_t>(static_cast<uint32_t>(halves[i]));
    words[2 * i + 1] = static_cast<int32_t>(static_cast<uint32_t>(halves[i] >> 32));
  }
}

}  // namespace halftone
