// Folders of pictures with captions: those of the server's own folder, which requests may make and
// change, and others that its user names, which they may only read.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace halftone {

class Datasets {
 public:
  // `own` is made; `others` are folders of datasets.
  Datasets(std::filesystem::path own, std::vector<std::filesystem::path> others);

  nlohmann::ordered_json list() const;
  nlohmann::ordered_json describe(const std::string& name) const;
  std::filesystem::path folder(const std::string& name) const;  // an ApiError where there is none
  bool is_editable(const std::string& name) const { return find(name).editable; }

  void create(const std::string& name);
  void remove(const std::string& name);
  // A picture, which is decoded before it is kept, or a caption (.txt). True where it is new.
  bool put(const std::string& name, const std::string& file, const std::string& bytes);
  void remove_file(const std::string& name, const std::string& file);
  // Where it is and what it is.
  struct File {
    std::filesystem::path path;
    std::string type;
  };
  File file(const std::string& name, const std::string& file) const;

 private:
  struct Found {
    std::filesystem::path path;
    bool editable = false;
  };
  std::vector<std::pair<std::string, Found>> all() const;
  Found find(const std::string& name) const;
  Found find_editable(const std::string& name) const;

  std::filesystem::path own_;
  std::vector<std::filesystem::path> others_;
};

}  // namespace halftone
