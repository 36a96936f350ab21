#pragma once

#include "halftone/base/progress.h"

namespace halftone::test {

// For what reports its progress, where nobody looks.
inline void silent(const Progress&) {}

}  // namespace halftone::test
