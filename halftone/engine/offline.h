// Pictures for all lines of a file into a folder, by one process or by several: shared out by the
// work, skipped where they are there already, and listed in an index.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "halftone/base/progress.h"
#include "halftone/engine/offline_lines.h"
#include "halftone/runtime/collective.h"

namespace halftone {

struct OfflineOptions {
  ModelSpec model;  // its adapters come from the lines
  std::filesystem::path prompts, folder;
  OfflineDefaults defaults;
  int batch = 1;           // pictures that share a forward, at most
  bool overwrite = false;  // make again what is there
  bool skip_wrong = false;
  bool tiles = false;      // decode in tiles of the usual size
  int64_t max_memory = 0;  // of each process; 0: what is free
};

// A picture that was there and did not fit its line any more, or whose line could not be made.
struct OfflineNote {
  int line = 0;
  std::string name;  // of the file, or of the line
  std::string why;
};

// What all processes together have done; the first of them is told.
struct OfflineResult {
  LoadedModel loaded;
  std::string hash;
  std::filesystem::path index;
  size_t lines = 0, pictures = 0, made = 0, kept = 0;
  std::vector<OfflineNote> made_again, failed;
  std::vector<std::string> notes, fallbacks;
  GenerateSeconds seconds;  // of this process
  double total = 0;
};

inline constexpr const char* kOfflineIndex = "index.jsonl";

// Lines are checked before anything is made. What fails later is told in the result and in the
// index, and the rest is made; a disk that is full ends it with an Error, as does cancelling: what
// is finished by then stays, and the same call goes on. Progress counts steps of all processes; it
// may throw Error{kCancelled}. Where another process has failed beforehand, only the first throws.
OfflineResult generate_offline(Engine& engine, const OfflineOptions& options, Collective& processes,
                               const ProgressFn& progress);

}  // namespace halftone
