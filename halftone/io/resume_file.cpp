#include "halftone/io/resume_file.h"

#include <algorithm>
#include <map>

#include "halftone/base/error.h"
#include "halftone/io/model_hash.h"

namespace halftone {
namespace {

constexpr const char* kChecksum = "halftone.checksum";

// Of all tensors by name, so that the order in the file does not matter, and of what is said of
// them.
std::string checksum_of(const std::map<std::string, Tensor>& tensors, Metadata metadata) {
  metadata.erase(kChecksum);
  std::string all;
  for (const auto& [key, value] : metadata) all += key + '=' + value + '\n';
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = tensor.bytes();
    all +=
        name + ' ' + text_hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()}) + '\n';
  }
  return text_hash(all);
}

}  // namespace

void write_resume_file(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       Metadata metadata) {
  metadata[kChecksum] = checksum_of({tensors.begin(), tensors.end()}, metadata);
  write_safetensors(path, tensors, metadata);
}

void check_resume_file(const SafetensorsFile& file) {
  std::map<std::string, Tensor> tensors;
  for (const TensorEntry& entry : file.tensors()) tensors.emplace(entry.name, file.tensor(entry));
  const auto found = file.metadata().find(kChecksum);
  if (found == file.metadata().end() || found->second != checksum_of(tensors, file.metadata())) {
    throw Error(ErrorCode::kInvalidInput, file.path().string(),
                "is damaged: its data are not what was written");
  }
}

}  // namespace halftone
