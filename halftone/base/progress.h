// How long work reports where it is. The callback may throw Error{kCancelled} to stop the work;
// whoever does the work cleans up on the way out.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace halftone {

struct Progress {
  std::string_view item;  // what is being worked on
  int64_t done = 0;       // bytes or steps
  int64_t total = 0;
};

using ProgressFn = std::function<void(const Progress&)>;

}  // namespace halftone
