// The sampler's step behind a denoiser, in one graph: guidance, and the linear combination that the
// next latents are. On a device nothing but a few numbers goes up between steps.
#pragma once

#include <set>

#include "halftone/diffusion/guidance.h"
#include "halftone/graph/graph.h"

namespace halftone {

struct SamplerGraph {
  int64_t jobs = 1;
  GuidanceRule rule = GuidanceRule::kNone;  // other than none: the graph's rows are those of all
                                            // jobs with their prompts, then with negative ones
  // Not empty: a prediction without these blocks is given besides, and guides as well.
  std::set<int64_t> skip_blocks = {};
  size_t memories = 0;
  bool noise = false;
};

// The graph has the input latents and the output sample. Adds
//   inputs   guidance [jobs], where there is any; skipped [jobs, ...], the prediction for the
//   prompt
//            without some blocks, and skip_scale [jobs], where they are asked for; noise_keys
//            [jobs, 4], where noise is used: it is drawn where the graph runs; memory.0, ...;
//            factors [1 + memories, jobs, 3 + memories], as SamplerStep has them
//   outputs  next [jobs, ...], and next.memory.0, ...
void add_sampler(Graph& graph, const SamplerGraph& sampler);

std::string memory_name(size_t index);       // "memory.0"
std::string next_memory_name(size_t index);  // "next.memory.0"

}  // namespace halftone
