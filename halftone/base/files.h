// Questions about paths that never throw anything but Error.
#pragma once

#include <filesystem>
#include <system_error>

namespace halftone {

// False where it cannot be found out, too; opening it then tells why.
inline bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}
inline bool path_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace halftone
