#include "halftone/quantize/moment_passes.h"

#include <algorithm>

#include "halftone/quantize/error_spread.h"

namespace halftone {

int64_t moment_bytes(std::span<const MomentGroup> groups) {
  int64_t gathered = 0, used = 0;
  for (const MomentGroup& group : groups) {
    gathered += InputMoments::bytes(group.width);
    used = std::max(used, ErrorSpread::bytes(group.width));
  }
  return gathered + used;
}

std::optional<std::vector<std::vector<MomentGroup>>> plan_passes(
    const std::vector<MomentGroup>& groups, int64_t most) {
  std::vector<std::vector<MomentGroup>> passes;
  for (const MomentGroup& group : groups) {
    if (moment_bytes({&group, 1}) > most) return {};
    if (!passes.empty()) {
      passes.back().push_back(group);
      if (moment_bytes(passes.back()) <= most) continue;
      passes.back().pop_back();
    }
    passes.push_back({group});
  }
  return passes;
}

}  // namespace halftone
