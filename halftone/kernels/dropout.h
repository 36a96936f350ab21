// Which values a dropout keeps. Callable on host and device, where the same are kept.
#pragma once

#include "halftone/base/random.h"
#include "halftone/kernels/op_args.h"

namespace halftone {

class Dropout {
 public:
  explicit Dropout(const DropoutAttributes& how)
      : site_(how.site),
        threshold_(static_cast<uint32_t>(static_cast<double>(how.share) * 0x1p32)),
        factor_(1.0f / (1.0f - how.share)) {}

  // For the four values of a row from `at` on, a multiple of four.
  HT_HOST_DEVICE PhiloxBlock block(PhiloxKey key, int64_t at) const {
    constexpr int kPlaces = 36;  // bits
    return philox_block(key, uint64_t{site_} << kPlaces | static_cast<uint64_t>(at / 4));
  }
  HT_HOST_DEVICE float factor(uint32_t drawn) const { return drawn < threshold_ ? 0.0f : factor_; }

 private:
  uint32_t site_, threshold_;
  float factor_;
};

}  // namespace halftone
