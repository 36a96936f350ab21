#include "halftone/server/names.h"

#include "halftone/base/error.h"
#include "halftone/server/api_error.h"

namespace halftone {

namespace fs = std::filesystem;

void check_name(const std::string& field, const std::string& name) {
  constexpr size_t kMost = 100;
  if (name.empty()) throw invalid(field, "is empty");
  if (name.size() > kMost) throw invalid(field, fmt::format("has more than {} bytes", kMost));
  if (!is_valid_utf8(name)) throw invalid(field, "is not UTF-8");
  if (name.front() == '.' || name.front() == ' ' || name.back() == ' ') {
    throw invalid(field, fmt::format("'{}' begins with a dot or has spaces around it", name));
  }
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == ' ' || c == '.' || c == '-' || c == '_';
    if (plain || byte >= 0x80) continue;
    throw invalid(field, fmt::format("'{}' holds something else than letters, digits, spaces, "
                                     "dots, dashes and underscores",
                                     printable(name)));
  }
}

fs::path inside(const fs::path& folder, const std::string& field, const std::string& name) {
  check_name(field, name);
  const fs::path path = folder / name;
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  if (error) return path;  // there is no folder, and nothing in it
  const fs::path real = fs::weakly_canonical(path, error);
  const fs::path from_root = real.lexically_relative(root);
  if (error || from_root.empty() || *from_root.begin() == "..") {
    throw not_found(fmt::format("there is no '{}'", printable(name)));
  }
  return path;
}

}  // namespace halftone
