// Where fixtures lie.
#pragma once

#include <filesystem>

namespace halftone::test {

inline const std::filesystem::path kData = HALFTONE_TEST_DATA;

}  // namespace halftone::test
