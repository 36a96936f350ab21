// Which moments are gathered together, where memory does not hold them all at once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace halftone {

// Linears that read one input, and weights among them that are to be rounded by its moments.
struct MomentGroup {
  std::string first;  // the weight that the moments go by
  int64_t width = 0;
  std::vector<std::string> weights;
};

// Bytes that these take while they are gathered, and then used one after the other.
int64_t moment_bytes(std::span<const MomentGroup> groups);

// Groups in their order, in as few passes as keep each within `most` bytes. None where the widest
// one alone does not fit.
std::optional<std::vector<std::vector<MomentGroup>>> plan_passes(
    const std::vector<MomentGroup>& groups, int64_t most);

}  // namespace halftone
