#include "halftone/training/example_cache.h"

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/io/model_hash.h"
#include "halftone/io/resume_file.h"

namespace halftone {
namespace {

constexpr const char* kKey = "halftone.key";

NamedTensors read(const std::filesystem::path& path, const std::string& key) {
  const SafetensorsFile file(path);
  check_resume_file(file);
  const auto said = file.metadata().find(kKey);
  if (said == file.metadata().end() || said->second != key) {
    throw Error(ErrorCode::kInvalidInput, path.string(), "is of something else");
  }
  NamedTensors tensors;
  for (const TensorEntry& entry : file.tensors()) tensors.emplace(entry.name, file.tensor(entry));
  return tensors;
}

}  // namespace

NamedTensors ExampleCache::get(const std::string& kind, const std::string& key,
                               const std::function<NamedTensors()>& make) {
  const std::string name = text_hash(key);
  if (folder_.empty() || name == "unknown") return ++made_, make();
  const std::filesystem::path path = folder_ / (kind + "-" + name + ".safetensors");
  if (path_exists(path)) {
    try {
      NamedTensors tensors = read(path, key);
      ++found_;
      return tensors;
    } catch (const Error&) {
      ++damaged_;
    }
  }
  const NamedTensors made = make();
  ++made_;
  write_resume_file(path, {made.begin(), made.end()}, {{kKey, key}});
  return read(path, key);
}

}  // namespace halftone
