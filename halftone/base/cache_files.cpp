#include "halftone/base/cache_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace halftone {

namespace fs = std::filesystem;

std::string cache_folder() {
  if (const char* own = std::getenv("HALFTONE_CACHE"); own != nullptr) return own;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0') {
    return std::string(xdg) + "/halftone";
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? std::string(home) + "/.cache/halftone" : "";
}

std::string cache_file(const std::string& kind, const std::string& head) {
  const std::string folder = cache_folder();
  if (folder.empty()) return "";
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : head) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return fmt::format("{}/{}-{:016x}.bin", folder, kind, hash);
}

// A file holds the head, a zero, and what is kept.
std::string read_cache_file(const std::string& file, const std::string& head) {
  if (file.empty()) return "";
  std::string bytes;
  try {
    std::ifstream in(file, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  } catch (const std::ios_base::failure&) {  // a folder, say: as if it were not there
    return "";
  }
  const bool same =
      bytes.size() > head.size() + 1 && bytes.starts_with(head) && bytes[head.size()] == '\0';
  return same ? bytes.substr(head.size() + 1) : "";
}

void write_cache_file(const std::string& file, const std::string& head, const std::string& bytes) {
  if (!file.empty()) write_cache_file(file, head + '\0' + bytes);
}

void write_cache_file(const std::string& file, const std::string& bytes) {
  std::error_code ignored;
  fs::create_directories(fs::path(file).parent_path(), ignored);
  const std::string temporary = fmt::format(
      "{}.{}-{:x}", file, ::getpid(), std::hash<std::thread::id>()(std::this_thread::get_id()));
  bool written = false;
  {
    std::ofstream out(temporary, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    written = static_cast<bool>(out.flush());
  }
  if (written) fs::rename(temporary, file, ignored);
  if (!written || ignored) fs::remove(temporary, ignored);
}

}  // namespace halftone
