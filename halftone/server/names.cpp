#include "halftone/server/names.h"

#include <algorithm>

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

std::string named_folders(std::string text, FolderNames names) {
  std::ranges::sort(names, [](const auto& a, const auto& b) {  // the innermost first
    return a.first.size() > b.first.size();
  });
  const auto ends = [&](size_t at) {  // whether no name goes on here
    return at >= text.size() || std::string_view("/ '\",;:)]<").find(text[at]) != std::string::npos;
  };
  for (const auto& [folder, name] : names) {
    for (size_t at = text.find(folder); at != std::string::npos; at = text.find(folder, at)) {
      size_t end = at + folder.size();
      if (folder.size() < 2 || !ends(end)) {
        at = end;
        continue;
      }
      if (name.empty() && end < text.size() && text[end] == '/') ++end;
      text.replace(at, end - at, name);
      at += name.size();
    }
  }
  return text;
}

std::string named_paths(std::string text, FolderNames names) {
  text = named_folders(std::move(text), std::move(names));
  // What no name is known for: "/usr/share/x.json" is "x.json". Not "and/or", nor a lone slash.
  for (size_t at = text.find('/'); at != std::string::npos; at = text.find('/', at + 1)) {
    const bool begins =
        at == 0 || std::string_view(" '\"(,").find(text[at - 1]) != std::string::npos;
    const size_t end = std::min(text.find_first_of(" '\",;:)", at), text.size());
    const size_t last = text.rfind('/', end - 1);
    if (!begins || last == at || last + 1 == end) continue;
    text.erase(at, last + 1 - at);
  }
  return text;
}

}  // namespace halftone
