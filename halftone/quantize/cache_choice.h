// How much steps may reuse of each other: the largest threshold of a step cache whose pictures stay
// near those without one, found by making some.
#pragma once

#include <string>
#include <vector>

#include "halftone/quantize/parity.h"

namespace halftone {

struct CacheChoiceOptions {
  int64_t width = 0, height = 0;
  int steps = 0;
  float guidance = 0;
  SchedulerConfig scheduler;
  double least_ssim = 0.95;  // of every picture against the one made without a cache
  std::string not_measured;  // why it may not be measured now, only remembered; empty: it may
};

struct CacheChoice {
  float threshold = 0;      // 0: no threshold holds the bound
  double ssim = 1;          // the worst at that threshold
  double reused_share = 0;  // of steps, on average
  bool remembered = false;  // from an earlier run
  std::string why_none;     // where nothing was measured
};

// Beside a run: the pictures that are compared, and what comparing them takes.
int64_t cache_choice_bytes(const CacheChoiceOptions& options, const Shape& latents);

// With prompts that calibration uses, a picture each. What comes out is kept in the user's cache
// folder (base/cache_files.h) and found there for the same model, precision, device, size and
// sampling. `what` tells these but for the sampling: two that differ are told apart by it.
CacheChoice choose_cache(Pipeline& model, const std::string& what,
                         const CacheChoiceOptions& options, const ProgressFn& progress);

// "cache 0.12: SSIM at least 0.963, 41% of the steps reused on calibration prompts (bound 0.95)"
std::string told(const CacheChoice& choice, const CacheChoiceOptions& options);

}  // namespace halftone
