// Files that an interrupted run goes on from carry a checksum of their data: a bit that has changed
// would otherwise change the result, and nobody would know.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"

namespace halftone {

void write_resume_file(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       Metadata metadata);
// An Error that names the file where its data are not those that were written.
void check_resume_file(const SafetensorsFile& file);

}  // namespace halftone
