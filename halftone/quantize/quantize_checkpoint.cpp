#include "halftone/quantize/quantize_checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/io/output.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

void add(FileQuantizeReport& all, FileQuantizeReport part) {
  all.converted.insert(all.converted.end(), part.converted.begin(), part.converted.end());
  all.kept.insert(all.kept.end(), part.kept.begin(), part.kept.end());
  all.copied += part.copied;
  all.copied_bytes += part.copied_bytes;
  all.file_bytes_before += part.file_bytes_before;
  all.file_bytes_after += part.file_bytes_after;
}

void write_index(const fs::path& folder, const std::string& name,
                 const std::vector<fs::path>& files) {
  nlohmann::ordered_json index;
  int64_t total = 0;
  index["metadata"]["total_size"] = 0;
  for (const fs::path& path : files) {
    const SafetensorsFile file(path);
    for (const TensorEntry& tensor : file.tensors()) {
      index["weight_map"][tensor.name] = path.filename().string();
      total += tensor.byte_size();
    }
  }
  index["metadata"]["total_size"] = total;
  write_file(folder / name, index.dump(2) + "\n");
}

}  // namespace

FileQuantizeReport quantize_checkpoint(const Checkpoint& input, const fs::path& folder,
                                       const FileQuantizeOptions& options, const Kernels& kernels,
                                       Stream stream, const ProgressFn& progress) {
  FileQuantizeReport report;
  int64_t before = 0;
  const int64_t total = input.tensor_bytes();
  std::vector<fs::path> files;
  fs::create_directories(folder);
  for (const auto& file : input.files()) {
    files.push_back(folder / file->path().filename());
    const ProgressFn part = [&](const Progress& p) {
      progress({p.item, std::min(before + p.done, total), total});
    };
    add(report, quantize_file(file->path(), files.back(), options, kernels, stream, part));
    for (const TensorEntry& tensor : file->tensors()) before += tensor.byte_size();
  }
  if (report.converted.empty()) {
    throw Error(ErrorCode::kInvalidInput, input.path().string(),
                "nothing to convert: the recipe keeps all {} weights", report.kept.size());
  }
  if (files.size() > 1) {
    const std::string stem = files[0].stem().string();
    const size_t cut = stem.find("-0");  // NAME-00001-of-00003
    write_index(folder, stem.substr(0, cut) + ".safetensors.index.json", files);
  }
  return report;
}

namespace {

// What is below `from`, links followed and under their own names. `above` are the folders on the
// way, by which links that lead back are found.
void copy_below(const fs::path& from, const fs::path& to, const fs::path& skip,
                std::vector<fs::path>& above, const ProgressFn& progress) {
  above.push_back(fs::canonical(from));
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path name = entry.path().filename();
    const fs::file_status status = fs::status(entry.path());  // of what a link points at
    if (fs::is_directory(status)) {
      const fs::path folder = fs::canonical(entry.path());
      if (std::find(above.begin(), above.end(), folder) != above.end()) {
        throw Error(ErrorCode::kInvalidInput, entry.path().string(),
                    "is a link to a folder that it lies in");
      }
      copy_below(entry.path(), to / name, skip, above, progress);
    } else if (!fs::is_regular_file(status)) {
      throw Error(ErrorCode::kInvalidInput, entry.path().string(), "{}",
                  fs::exists(status) ? "is neither a file nor a folder" : "is a link to nothing");
    } else if (from != skip || (name.extension() != ".safetensors" &&
                                !name.string().ends_with(".safetensors.index.json"))) {
      progress({name.string(), 0, 1});
      fs::copy_file(entry.path(), to / name);
    }
  }
  above.pop_back();
}

}  // namespace

void copy_model_folder(const fs::path& from, const fs::path& to, const std::string& part,
                       const ProgressFn& progress) {
  std::vector<fs::path> above;
  try {
    // Of the part, configs stay; weights are written anew.
    copy_below(from, to, from / part, above, progress);
  } catch (const fs::filesystem_error& error) {
    const fs::path& where = error.path2().empty() ? error.path1() : error.path2();
    throw Error(ErrorCode::kIo, where.string(), "cannot be copied: {}", error.code().message());
  }
}

}  // namespace halftone
