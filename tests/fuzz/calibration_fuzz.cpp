// Any bytes are an Error or what an interrupted run has left: what a calibration has seen, with as
// many prompts, steps and points as it may have, what a search has measured, or weights that were
// rounded; and nothing that breaks what goes on from there.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "halftone/base/error.h"
#include "halftone/quantize/calibration_file.h"
#include "halftone/quantize/rounded_weights.h"

namespace {

using namespace halftone;

// Those of the seeds.
CalibrationLayout layout() {
  CalibrationLayout layout;
  layout.fingerprint = "me";
  layout.prompts = 2;
  layout.steps = 2;
  layout.points = {{0, 1}, {1, 1}};
  layout.latents = {1, 1, 1, 2};
  layout.inputs = {{"a", 2}, {"b", 2}};
  layout.moments = {{"a", 2}};
  return layout;
}

// A file of these bytes that has no place in any folder.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    HT_ASSERT(fd_ >= 0 && ::write(fd_, data, size) == static_cast<ssize_t>(size));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  int fd_;
};

void read_as_calibration(const std::string& path) {
  const CalibrationLayout expected = layout();
  CalibrationProgress progress;
  try {
    progress = read_calibration(path, expected);
  } catch (const Error&) {
    return;
  }
  HT_ASSERT(progress.done >= 1 && progress.done <= expected.prompts);
  HT_ASSERT(progress.points.size() == static_cast<size_t>(progress.done));
  HT_ASSERT(progress.inputs.size() == 2 && progress.moments.size() == 1);
  for (const auto& [weight, range] : progress.inputs) {
    HT_ASSERT(range.amax.size() == 2 && !std::signbit(range.largest()));
    for (const int64_t n : range.histogram) HT_ASSERT(n >= 0);
  }
  const std::vector<float>& sums = progress.moments.at("a").sums();
  HT_ASSERT(sums.size() == 4);
  if (progress.inputs.at("a").largest() < 1) HT_ASSERT(sums[0] >= 0 && std::isfinite(sums[1]));
  for (const CalibrationPoint& point : progress.points) {
    HT_ASSERT(point.latents.shape() == expected.latents);
  }
}

void read_as_losses(const std::string& path) {
  std::vector<double> losses;
  try {
    losses = read_losses(path, {"me", 4});
  } catch (const Error&) {
    return;
  }
  HT_ASSERT(!losses.empty() && losses.size() <= 4);
  for (const double loss : losses) HT_ASSERT(loss >= 0 && loss <= kNoNumber);
}

void read_as_rounded(const std::string& path) {
  const RoundedLayout expected{"me",
                               {{"a", {{1, 16}, {formats::fp8, formats::mxfp8, formats::nvfp4}}}}};
  RoundedWeights weights;
  try {
    weights = read_rounded(path, expected);
  } catch (const Error&) {
    return;
  }
  HT_ASSERT(weights.size() <= 3);
  for (const auto& [key, q] : weights) {
    HT_ASSERT(key.first == "a" && q.format.name == key.second && q.shape == Shape({1, 16}));
    HT_ASSERT(q.codes.numel() == q.format.code_bytes(16));
    if (q.format == formats::fp8) {
      HT_ASSERT(std::isfinite(q.scales.as<float>()[0]));
      for (const std::byte code : q.codes.bytes()) {
        HT_ASSERT((code & std::byte{0x7F}) != std::byte{0x7F});
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemoryFile file(data, size);
  read_as_calibration(file.path());
  read_as_losses(file.path());
  read_as_rounded(file.path());
  return 0;
}
