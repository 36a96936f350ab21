#include "halftone/training/dataset.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/io/read_picture.h"
#include "halftone/tensor/storage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMostCaptionBytes = 64 << 10, kMostListBytes = 1 << 30;

std::string read_text(const fs::path& path, size_t most) {
  const auto file = Storage::map_file(path);
  if (file->size() > most) {
    throw Error(ErrorCode::kInvalidInput, path.string(), "{} bytes are too many", file->size());
  }
  return {reinterpret_cast<const char*>(file->bytes().data()), file->size()};
}

// One line, without the spaces around it; what is no text is an Error.
std::string cleaned(std::string text, const std::string& where) {
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (!is_valid_utf8(text)) throw Error(ErrorCode::kInvalidInput, where, "is not UTF-8");
  if (text.find('\0') != std::string::npos) {
    throw Error(ErrorCode::kInvalidInput, where, "holds a NUL, which no text does");
  }
  std::string line;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n' || c == '\r' || c == '\t';
    if (!space) line += c;
    if (space && !line.empty() && line.back() != ' ') line += ' ';
  }
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

class Finder {
 public:
  Finder(const fs::path& folder, const CaptionRules& rules) : folder_(folder), rules_(rules) {}

  Dataset run() {
    list_files();
    for (const fs::path& list : lists_) attempt(list, [&] { read_list(list); });
    for (const fs::path& picture : pictures_) attempt(picture, [&] { add(picture); });
    for (const fs::path& caption : captions_) {
      if (!used_.contains(caption)) skip(caption, "is a caption without a picture");
    }
    for (const auto& [picture, entry] : listed_) {
      if (!pictures_.contains(picture)) {
        skip(entry.where, fmt::format("there is no picture '{}'", printable(entry.name)));
      }
    }
    return std::move(found_);
  }

 private:
  struct Listed {
    std::string where, name, caption;
  };

  void list_files() {
    if (!is_folder(folder_)) {
      throw Error(ErrorCode::kNotFound, folder_.string(), "{}",
                  path_exists(folder_) ? "is no folder" : "there is no such folder");
    }
    if (::access(folder_.c_str(), R_OK | X_OK) != 0) {
      throw Error(ErrorCode::kIo, folder_.string(), "{}", std::strerror(errno));
    }
    std::error_code error;
    fs::recursive_directory_iterator it(folder_, fs::directory_options::skip_permission_denied,
                                        error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      const fs::path path = it->path();
      if (path.filename().string().starts_with('.')) {  // what tools leave behind, not people
        if (it->is_directory(error)) it.disable_recursion_pending();
        continue;
      }
      std::error_code ignored;
      if (it->is_directory(ignored)) {
        if (::access(path.c_str(), R_OK | X_OK) != 0) skip(path, "is a folder that cannot be read");
        if (it->is_symlink(ignored)) skip(path, "is a link to a folder, which is not followed");
        continue;
      }
      if (!rules_.links && it->is_symlink(ignored)) {
        skip(path, "is a link");
        continue;
      }
      if (!it->is_regular_file(ignored)) {
        if (is_picture_name(path)) skip(path, "is no file, or a link to none");
        continue;
      }
      if (is_picture_name(path)) {
        pictures_.insert(path.lexically_normal());
      } else if (path.extension() == ".txt") {
        captions_.insert(path.lexically_normal());
      } else if (path.extension() == ".jsonl") {
        lists_.insert(path.lexically_normal());
      }
    }
    if (error) throw Error(ErrorCode::kIo, folder_.string(), "{}", error.message());
  }

  void skip(const fs::path& file, std::string why) {
    found_.skipped.push_back({file.string(), std::move(why)});
  }
  template <class Fn>
  void attempt(const fs::path& file, const Fn& fn) {
    try {
      fn();
    } catch (const Error& error) {
      skip(error.where().empty() ? file.string() : error.where(), error.message());
    }
  }

  // The first of these keys that a line has.
  static std::string text_of(const json& line, const std::string& where,
                             std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      const auto found = line.find(key);
      if (found == line.end()) continue;
      if (!found->is_string()) {
        throw Error(ErrorCode::kInvalidInput, where, "\"{}\" is no text", key);
      }
      return found->get<std::string>();
    }
    throw Error(ErrorCode::kInvalidInput, where, "has no \"{}\"", *keys.begin());
  }

  // As files of the folder are called here.
  fs::path path_of(const fs::path& list, const std::string& name) const {
    const fs::path path = (list.parent_path() / name).lexically_normal();
    if (!fs::path(name).is_absolute()) return path;
    return (folder_ / path.lexically_relative(fs::absolute(folder_).lexically_normal()))
        .lexically_normal();
  }

  void read_list(const fs::path& list) {
    std::istringstream lines(read_text(list, kMostListBytes));
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      const std::string where = fmt::format("{}:{}", list.string(), ++number);
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      attempt(where, [&] {
        const json object = json::parse(line, nullptr, false);
        if (!object.is_object()) throw Error(ErrorCode::kInvalidInput, where, "is no JSON object");
        const std::string name = text_of(object, where, {"file_name", "image", "path"});
        const std::string caption = text_of(object, where, {"text", "caption", "prompt"});
        const Listed entry{where, name, cleaned(caption, where)};
        if (!listed_.emplace(path_of(list, name), entry).second) {
          throw Error(ErrorCode::kInvalidInput, where, "'{}' has a caption already",
                      printable(name));
        }
      });
    }
  }

  void add(const fs::path& picture) {
    fs::path beside = picture;
    beside.replace_extension(".txt");
    std::string caption;
    if (const auto listed = listed_.find(picture); listed != listed_.end()) {
      caption = listed->second.caption;
      used_.insert(beside);
    } else if (captions_.contains(beside)) {
      used_.insert(beside);
      caption = cleaned(read_text(beside, kMostCaptionBytes), beside.string());
    } else if (rules_.usual.empty()) {
      throw Error(ErrorCode::kInvalidInput, picture.string(),
                  "has no caption: neither {} nor a line of a .jsonl, and no usual one is given",
                  printable(beside.filename().string()));
    } else {
      caption = rules_.usual;
    }
    if (!rules_.trigger.empty()) {
      caption = caption.empty() ? rules_.trigger : rules_.trigger + ", " + caption;
    }
    found_.items.push_back({picture, caption});
  }

  const fs::path& folder_;
  const CaptionRules& rules_;
  std::set<fs::path> pictures_, captions_, lists_, used_;
  std::map<fs::path, Listed> listed_;
  Dataset found_;
};

}  // namespace

Dataset find_pictures(const fs::path& folder, const CaptionRules& captions) {
  return Finder(folder, captions).run();
}

}  // namespace halftone
