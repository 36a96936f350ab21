// What is worth remembering between runs: algorithms, compiled kernels, choices that were measured.
#pragma once

#include <string>

namespace halftone {

// $HALFTONE_CACHE, else halftone/ in the user's cache folder; empty where there is none.
std::string cache_folder();

// The file for what depends on `head` alone: KIND-HASH.bin there; empty where there is no folder.
std::string cache_file(const std::string& kind, const std::string& head);
// What was kept there under this head, and not under another with the same hash; empty without.
std::string read_cache_file(const std::string& file, const std::string& head);
void write_cache_file(const std::string& file, const std::string& head, const std::string& bytes);

// Writes a file as a whole or not at all, so that processes that end together do not mix. A cache
// that cannot be written is none, and no error.
void write_cache_file(const std::string& file, const std::string& bytes);

}  // namespace halftone
