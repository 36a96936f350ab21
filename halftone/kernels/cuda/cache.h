// What is worth remembering between runs: algorithms, compiled kernels.
#pragma once

#include <string>

namespace halftone::cuda {

// $HALFTONE_CACHE, else halftone/ in the user's cache folder; empty where there is none.
std::string cache_folder();

// Writes a file as a whole or not at all, so that processes that end together do not mix. A cache
// that cannot be written is none, and no error.
void write_cache_file(const std::string& file, const std::string& bytes);

}  // namespace halftone::cuda
