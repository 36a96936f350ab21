// Pictures and their captions, as people keep them: a folder with NAME.txt beside NAME.png, or with
// a .jsonl file that says which caption belongs to which picture.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace halftone {

struct DataItem {
  std::filesystem::path picture;
  std::string caption;
};

// A file that is not trained on, and why.
struct SkippedFile {
  std::string file, why;
};

struct Dataset {
  std::vector<DataItem> items;  // by path
  std::vector<SkippedFile> skipped;
};

// What captions are where files do not say it all.
struct CaptionRules {
  std::string usual;    // of pictures that have none; empty: those are skipped
  std::string trigger;  // before every caption: "trigger, caption"
  bool links = true;    // files that are links count
};

// Everything below the folder. A line of a .jsonl is an object with "file_name" ("image", "path")
// and "text" ("caption", "prompt"); the names of files are relative to it. Pictures that are listed
// twice, captions without a picture and files that cannot be read are skipped, and named.
// A folder that is not there is an Error.
Dataset find_pictures(const std::filesystem::path& folder, const CaptionRules& captions);

}  // namespace halftone
