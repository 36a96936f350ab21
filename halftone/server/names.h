// Names that requests give to things, and the files that they stand for: never anything outside of
// the folder that holds them.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace halftone {

// Letters of any script, digits, spaces, '.', '-' and '_', at most 100 bytes, no leading dot. An
// ApiError that names the field.
void check_name(const std::string& field, const std::string& name);

// The file or folder of this name in `folder`, which may not exist yet. What is a link to somewhere
// outside of it is not found.
std::filesystem::path inside(const std::filesystem::path& folder, const std::string& field,
                             const std::string& name);

// Folders of this machine, and what clients call them.
using FolderNames = std::vector<std::pair<std::string, std::string>>;
// A text with names in place of these folders: "/data/sets/cats/1.png" becomes "cats/1.png".
std::string named_folders(std::string text, FolderNames names);
// The same for a message; of paths that lie elsewhere, the last part is left.
std::string named_paths(std::string text, FolderNames names);

}  // namespace halftone
