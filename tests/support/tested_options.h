// How models are loaded for the backend that a test executable is built for.
#pragma once

#include "halftone/engine/model.h"
#include "tests/support/backend.h"

namespace halftone::test {

inline LoadOptions tested_options() {
  LoadOptions options;
  options.kernels = &tested_kernels();
  options.stream = tested_stream();
  return options;
}

}  // namespace halftone::test
