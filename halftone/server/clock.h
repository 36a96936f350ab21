// Seconds: since 1970, as they are stored and told; and of a clock that nobody sets, for how long
// something took.
#pragma once

#include <chrono>

namespace halftone {

inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace halftone
