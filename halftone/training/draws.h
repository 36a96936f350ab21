// What numbers are drawn for in training: streams of a seed that have none in common.
#pragma once

#include "halftone/base/random.h"

namespace halftone {

enum class Draw : uint8_t {
  kInitial = 1,
  kOrder,
  kNoising,
  kStrength,
  kCaption,
  kDropout,
  kHeldOutNoise,
  kHeldOutStrength,
  kRounding,
};

inline PhiloxKey draw_key(uint64_t seed, Draw what, uint64_t when, uint64_t which) {
  return {seed, static_cast<uint64_t>(what) << 56 | when << 24 | which};
}

// From 0 to 1, without either.
inline double draw_uniform(PhiloxKey key, uint64_t index = 0) {
  return (philox_word(key, index) + 0.5) * 0x1p-32;
}

}  // namespace halftone
