// Names that requests give to things, and the files that they stand for: never anything outside of
// the folder that holds them.
#pragma once

#include <filesystem>
#include <string>

namespace halftone {

// Letters of any script, digits, spaces, '.', '-' and '_', at most 100 bytes, no leading dot. An
// ApiError that names the field.
void check_name(const std::string& field, const std::string& name);

// The file or folder of this name in `folder`, which may not exist yet. What is a link to somewhere
// outside of it is not found.
std::filesystem::path inside(const std::filesystem::path& folder, const std::string& field,
                             const std::string& name);

}  // namespace halftone
