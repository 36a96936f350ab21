#include "halftone/server/datasets.h"

#include <sodium.h>

#include <algorithm>
#include <cctype>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/io/output.h"
#include "halftone/io/read_picture.h"
#include "halftone/server/api_error.h"
#include "halftone/server/names.h"
#include "halftone/training/dataset.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::string kind_of(const fs::path& file) {
  std::string kind = file.extension().string();
  std::ranges::transform(kind, kind.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return kind;
}

std::string media_type(const fs::path& file) {
  const std::string kind = kind_of(file);
  if (kind == ".png") return "image/png";
  if (kind == ".webp") return "image/webp";
  if (kind == ".jpg" || kind == ".jpeg") return "image/jpeg";
  if (kind == ".txt") return "text/plain; charset=utf-8";
  return "";
}

// "a/b.png" below the folder; names of folders are as names of files.
fs::path inside_all(const fs::path& folder, const std::string& file) {
  fs::path at = folder;
  std::string rest = file;
  for (;;) {
    const size_t slash = rest.find('/');
    at = inside(at, "file", rest.substr(0, slash));
    if (slash == std::string::npos) return at;
    rest = rest.substr(slash + 1);
  }
}

struct Counts {
  int64_t pictures = 0, captioned = 0, bytes = 0;
};
Counts count(const fs::path& folder) {
  Counts counts;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (!at->is_regular_file(error) || !is_picture_name(at->path())) continue;
    ++counts.pictures;
    counts.bytes += static_cast<int64_t>(at->file_size(error));
    if (path_exists(fs::path(at->path()).replace_extension(".txt"))) ++counts.captioned;
  }
  return counts;
}

// Names with %XX where URLs need it.
std::string in_url(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ||
                       c == '.' || c == '/';
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace

Datasets::Datasets(fs::path own, std::vector<fs::path> others)
    : own_(std::move(own)), others_(std::move(others)) {
  std::error_code error;
  fs::create_directories(own_, error);
  if (error) throw Error(ErrorCode::kIo, own_.string(), "{}", error.message());
}

std::vector<std::pair<std::string, Datasets::Found>> Datasets::all() const {
  std::vector<std::pair<std::string, Found>> found;
  const auto add = [&](const fs::path& place, bool editable) {
    std::error_code error;
    for (fs::directory_iterator at(place, error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename().string();
      // What is ours are folders; a link to somewhere else is not.
      if (name.starts_with('.') || !is_folder(at->path())) continue;
      if (editable && at->is_symlink(error)) continue;
      const bool taken = std::ranges::any_of(found, [&](const auto& f) { return f.first == name; });
      if (!taken) found.emplace_back(name, Found{at->path(), editable});
    }
  };
  add(own_, true);
  for (const fs::path& place : others_) add(place, false);
  std::ranges::sort(found,
                    [](const auto& a, const auto& b) { return natural_less(a.first, b.first); });
  return found;
}

Datasets::Found Datasets::find(const std::string& name) const {
  for (const auto& [known, found] : all()) {
    if (known == name) return found;
  }
  throw ApiError(404, "not_found", "dataset",
                 fmt::format("there is no dataset '{}'", printable(name)));
}

Datasets::Found Datasets::find_editable(const std::string& name) const {
  Found found = find(name);
  if (found.editable) return found;
  throw ApiError(403, "forbidden", "dataset",
                 fmt::format("'{}' is a folder of this machine, which is only read", name));
}

fs::path Datasets::folder(const std::string& name) const { return find(name).path; }

ordered_json Datasets::list() const {
  ordered_json sets = ordered_json::array();
  for (const auto& [name, found] : all()) {
    const Counts counts = count(found.path);
    sets.push_back({{"name", name},
                    {"pictures", counts.pictures},
                    {"captioned", counts.captioned},
                    {"bytes", counts.bytes},
                    {"editable", found.editable}});
  }
  return {{"datasets", sets}};
}

ordered_json Datasets::describe(const std::string& name) const {
  const Found found = find(name);
  ordered_json items = ordered_json::array(), skipped = ordered_json::array();
  // A picture without a caption is one that is still to get it.
  const char* const kNone = "\x01";
  const Dataset data = find_pictures(found.path, {kNone, "", !found.editable});
  for (const DataItem& item : data.items) {
    const std::string file = item.picture.lexically_relative(found.path).string();
    items.push_back(
        {{"file", file},
         {"caption", item.caption == kNone ? "" : item.caption},
         {"url", fmt::format("/api/datasets/{}/files/{}", in_url(name), in_url(file))}});
  }
  for (const SkippedFile& file : data.skipped) {
    const fs::path path = fs::path(file.file).lexically_relative(found.path);
    skipped.push_back(
        {{"file", path.empty() ? fs::path(file.file).filename().string() : path.string()},
         {"why", file.why}});
  }
  return {{"name", name}, {"editable", found.editable}, {"items", items}, {"skipped", skipped}};
}

void Datasets::create(const std::string& name) {
  const fs::path path = inside(own_, "name", name);
  std::error_code error;
  const bool taken = std::ranges::any_of(all(), [&](const auto& set) { return set.first == name; });
  if (taken || !fs::create_directory(path, error)) {
    if (error) throw Error(write_error(error.value()), "name", "{}", error.message());
    throw ApiError(409, "conflict", "name", fmt::format("there is a dataset '{}' already", name));
  }
}

void Datasets::remove(const std::string& name) {
  const Found found = find_editable(name);
  std::error_code error;
  fs::remove_all(found.path, error);
  if (error) throw Error(ErrorCode::kIo, "dataset", "{}", error.message());
}

bool Datasets::put(const std::string& name, const std::string& file, const std::string& bytes) {
  const Found found = find_editable(name);
  const fs::path path = inside_all(found.path, file);
  const std::string kind = kind_of(path);
  if (kind == ".txt") {
    constexpr size_t kMost = 64 << 10;
    if (bytes.size() > kMost) throw ApiError(413, "too_large", "caption", "is too long");
    if (!is_valid_utf8(bytes)) throw invalid("caption", "is not UTF-8");
    if (bytes.find('\0') != std::string::npos) throw invalid("caption", "holds NUL");
  } else if (!is_picture_name(path)) {
    throw ApiError(415, "unsupported_media", "file",
                   "pictures are .png, .jpg, .jpeg or .webp, captions .txt");
  }
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (write_error(error.value()) == ErrorCode::kDiskFull) {
    throw Error(ErrorCode::kDiskFull, "file", "{}", error.message());
  }
  if (!is_folder(path.parent_path()) || is_folder(path)) {
    throw ApiError(409, "conflict", "file", "something else has this name");
  }
  const bool is_new = !path_exists(path);
  if (kind == ".txt") {
    write_file(path, bytes);
    return is_new;
  }
  // Under a name that no one takes for a picture, until it is known to be one.
  const fs::path checked = path.string() + fmt::format(".{:08x}.upload", randombytes_random());
  write_file(checked, bytes);
  try {
    read_picture(checked);
  } catch (const Error& problem) {
    fs::remove(checked, error);
    throw ApiError(415, "unsupported_media", "file", problem.message());
  }
  fs::rename(checked, path, error);
  if (error) {
    const std::error_code why = error;
    fs::remove(checked, error);
    throw Error(write_error(why.value()), "file", "{}", why.message());
  }
  return is_new;
}

void Datasets::remove_file(const std::string& name, const std::string& file) {
  const Found found = find_editable(name);
  const fs::path path = inside_all(found.path, file);
  std::error_code error;
  if (media_type(path).empty() || !fs::is_regular_file(path, error) || !fs::remove(path, error)) {
    throw not_found(fmt::format("there is no '{}'", printable(file)));
  }
  if (is_picture_name(path)) fs::remove(fs::path(path).replace_extension(".txt"), error);
}

Datasets::File Datasets::file(const std::string& name, const std::string& file) const {
  const Found found = find(name);
  const fs::path path = inside_all(found.path, file);
  std::error_code error;
  const std::string type = media_type(path);
  if (type.empty() || !fs::is_regular_file(path, error)) {
    throw not_found(fmt::format("there is no '{}'", printable(file)));
  }
  return {path, type};
}

}  // namespace halftone
