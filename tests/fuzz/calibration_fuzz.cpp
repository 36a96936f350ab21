// Any bytes are an Error or what a calibration has seen: as many prompts, steps and points as it
// may have, and nothing that breaks what goes on from there.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "halftone/base/error.h"
#include "halftone/quantize/calibration_file.h"

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemoryFile file(data, size);
  const CalibrationLayout expected = layout();
  CalibrationProgress progress;
  try {
    progress = read_calibration(file.path(), expected);
  } catch (const Error&) {
    return 0;
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
  return 0;
}
