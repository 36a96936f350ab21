#include "halftone/kernels/cuda/cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace halftone::cuda {

namespace fs = std::filesystem;

std::string cache_folder() {
  if (const char* own = std::getenv("HALFTONE_CACHE"); own != nullptr) return own;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0') {
    return std::string(xdg) + "/halftone";
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? std::string(home) + "/.cache/halftone" : "";
}

void write_cache_file(const std::string& file, const std::string& bytes) {
  std::error_code ignored;
  fs::create_directories(fs::path(file).parent_path(), ignored);
  const std::string temporary = fmt::format("{}.{}", file, ::getpid());
  bool written = false;
  {
    std::ofstream out(temporary, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    written = static_cast<bool>(out.flush());
  }
  if (written) fs::rename(temporary, file, ignored);
  if (!written || ignored) fs::remove(temporary, ignored);
}

}  // namespace halftone::cuda
