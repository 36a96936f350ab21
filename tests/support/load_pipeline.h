// A model of a folder, or of a single file with a folder for the rest, and a pipeline on it.
#pragma once

#include "halftone/engine/generate.h"

namespace halftone::test {

inline std::unique_ptr<Pipeline> load_pipeline(const std::filesystem::path& folder,
                                               const LoadOptions& options,
                                               const std::filesystem::path& file = {}) {
  const FoundModel found = file.empty() ? find_model(folder) : find_model(file, folder);
  return std::make_unique<Pipeline>(Model::load(found, options));
}

}  // namespace halftone::test
