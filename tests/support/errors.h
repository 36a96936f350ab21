// Runs something that must fail and returns the one line that it fails with.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "halftone/base/error.h"

namespace halftone::test {

inline std::string error_of(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "(no error)";
}

}  // namespace halftone::test
