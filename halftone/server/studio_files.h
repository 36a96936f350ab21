// The page's files, which travel inside the program.
#pragma once

#include <span>
#include <string_view>

namespace halftone {

struct StudioFile {
  std::string_view name, bytes;
};
std::span<const StudioFile> studio_files();  // written by cmake/Studio.cmake

}  // namespace halftone
