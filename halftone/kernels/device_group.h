// Devices of several processes that sum what lies on them among themselves, beside launches.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace halftone {

struct GroupPlace {
  std::string key;  // the same in all
  int rank = 0, size = 1;
};

class DeviceGroup {
 public:
  // Asked while others are waited for: true ends the wait with Error{kCancelled}.
  using Stop = std::function<bool()>;

  virtual ~DeviceGroup() = default;

  // Begins to sum, in place, what is there when all that was launched so far is done. All begin the
  // same sums in the same order.
  virtual void begin_sum(float* values, int64_t count) = 0;
  // Until all of them are done; what is launched from now on sees them. An Error where another
  // process has gone, or does not come: then nothing more is summed.
  virtual void finish(const Stop& stop) = 0;
  // Of the sums that finish() has waited for last, on the device.
  virtual double seconds() const = 0;
  // Ends the sums that are under way; nothing more is summed.
  virtual void abandon() noexcept = 0;
};

}  // namespace halftone
