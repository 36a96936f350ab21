// What a file of prompts asks for: a line of JSON for each, or a line of text.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "halftone/engine/engine.h"

namespace halftone {

// For lines that leave it out; what is left out here, too, is the model's own.
struct OfflineDefaults {
  std::string scheduler;
  std::optional<std::string> negative;
  std::optional<std::pair<int64_t, int64_t>> size;
  int steps = 0;
  float guidance = -1;
  float true_cfg = 0, cache = 0;
  SkipLayers skip;
  OriginalPicture original;
  uint64_t seed = 0;
  int count = 1;
  std::vector<LoraChoice> loras;
};

struct OfflineLine {
  int number = 0;           // in the file, from 1
  std::string id;           // as it says, or its number with zeros before it
  GenerateRequest request;  // without adapters, which need a model
  std::string scheduler;    // its name; empty: the model's own
  std::vector<LoraChoice> loras;
  std::string error;  // why it cannot be made; empty where it can

  std::string file(int index) const;  // the name of a picture: ID.png, or ID-1.png, ... of several
};

// Everything that can be wrong with lines before weights are read is wrong here: an Error that
// names file, line and field. With `skip_wrong` it is the line's `error`, and others can be made.
std::vector<OfflineLine> read_offline_lines(const std::filesystem::path& file,
                                            const OfflineDefaults& defaults,
                                            const ModelParts& model, bool skip_wrong);

}  // namespace halftone
