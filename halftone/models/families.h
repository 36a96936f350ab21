// The table of families, and which of them a folder or a file belongs to.
#pragma once

#include <filesystem>
#include <span>

#include "halftone/models/family.h"

namespace halftone {

std::span<const Family> families();

struct FoundModel {
  const Family* family = nullptr;
  ModelFiles files;
};
// `path` is a folder in diffusers layout, or a denoiser as a single file with `base` for the rest,
// of which the file may hold all but the tokenizers. What `base` has weights of comes from there.
// What belongs to no family, or to one that cannot be run yet, is an Error that says so.
FoundModel find_model(const std::filesystem::path& path, const std::filesystem::path& base = {});
// The family of which this file holds a denoiser and other parts as well; null: of none.
const Family* whole_model_in(const Checkpoint& file);

}  // namespace halftone
