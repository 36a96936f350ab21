#include "halftone/quantize/rounder.h"

#include "halftone/base/error.h"
#include "halftone/kernels/quantize.h"

namespace halftone {

QuantizedTensor Rounder::round(const std::string& name, const Tensor& weight,
                               const Format& format) const {
  if (cancelled_ && cancelled_()) throw Error(ErrorCode::kCancelled, "", "interrupted");
  const InputMoments* moments = calibration_.moments_of(name);
  // A recipe may choose linears whose inputs calibration does not watch.
  if (moments == nullptr) return quantize(cpu_kernels(), weight, format, {}, {threads_});
  return quantize_compensated(weight, format, *moments, cpu_kernels(), {threads_});
}

WeightQuantizer Rounder::function() {
  if (rounding_ == Rounding::kNearest) return {};
  return [this](const std::string& name, const Tensor& weight, const Format& format) {
    const auto key = std::pair(name, std::string(format.name));
    const auto found = made_.find(key);
    if (found != made_.end()) return found->second;
    return made_.emplace(key, round(name, weight, format)).first->second;
  };
}

}  // namespace halftone
