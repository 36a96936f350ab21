// Latents and text states on disk, so that a picture or a caption goes through its encoder once.
// Each is a file under a hash of everything that it follows from; a file is there as a whole or not
// at all, and one that was damaged is made again.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "halftone/models/family.h"

namespace halftone {

class ExampleCache {
 public:
  // An empty folder name: nothing is kept.
  explicit ExampleCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // What `make` gives, or gave when it was asked for the same key before. Tensors from disk are
  // mapped: they cost no memory until they are read, and then the system may take it back.
  NamedTensors get(const std::string& kind, const std::string& key,
                   const std::function<NamedTensors()>& make);

  int64_t found() const { return found_; }
  int64_t made() const { return made_; }
  int64_t damaged() const { return damaged_; }

 private:
  std::filesystem::path folder_;
  int64_t found_ = 0, made_ = 0, damaged_ = 0;
};

}  // namespace halftone
