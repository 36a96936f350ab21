// What tells of the pictures in a folder of results: their own text, and an index of them all.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "halftone/engine/offline_lines.h"
#include "halftone/io/png.h"

namespace halftone {

struct OfflinePicture {
  size_t line = 0;  // among the lines
  int index = 0;    // among those of its line
  std::string file;
  bool done = false;
  std::string error;  // why it is not
};

struct OfflineList {
  std::filesystem::path folder;
  std::string hash;  // of the model
  std::vector<OfflineLine> lines;
  std::vector<OfflinePicture> pictures;

  const GenerateRequest& request_of(const OfflinePicture& picture) const {
    return lines[picture.line].request;
  }
  std::filesystem::path path_of(const OfflinePicture& picture) const {
    return folder / picture.file;
  }
  PngText text_of(const OfflinePicture& picture, const LoadedModel& loaded) const;
};

// Why the picture of this name has to be made (again): its size or an entry of its text is another
// than these, the program's version aside. "missing" where there is none; empty where it is the
// one.
std::string why_make(const std::filesystem::path& file, const GenerateRequest& request,
                     const PngText& text);

// A line of JSON for each picture that is done or has failed, the same whoever made it when.
std::string offline_index(const OfflineList& list, const LoadedModel& loaded);

}  // namespace halftone
