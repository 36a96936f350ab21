#include "halftone/quantize/calibrate_passes.h"

#include "halftone/base/error.h"

namespace halftone {

Calibration calibrate(const CalibrationPasses& passes, const StageFn& stage) {
  Calibration result;
  const size_t count = passes.moments.size();
  for (size_t pass = 0; pass < std::max<size_t>(1, count); ++pass) {
    CalibrationOptions how = passes.how;
    how.moments = pass < count;
    how.only_moments = pass > 0;
    how.moments_of.emplace();
    if (how.moments) {
      for (const MomentGroup& group : passes.moments[pass]) how.moments_of->insert(group.first);
    }
    how.use_moments = [&](const Calibration& seen) {
      passes.rounder.round(passes.moments[pass], seen, stage("rounding weights"));
    };
    const std::string name =
        count < 2 ? "calibrating" : fmt::format("calibrating, pass {} of {}", pass + 1, count);
    // What is kept of later passes are the weights that they round.
    Calibration seen = calibrate(passes.model, passes.scheduler, how,
                                 pass == 0 ? passes.partial : std::filesystem::path(),
                                 passes.fingerprint, stage(name));
    if (pass == 0) result = std::move(seen);
  }
  return result;
}

}  // namespace halftone
