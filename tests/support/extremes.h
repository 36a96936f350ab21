#pragma once

#include <cmath>
#include <limits>

namespace halftone::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline const float kNan = std::nanf("");

}  // namespace halftone::test
