#include "halftone/quantize/quantize_checkpoint.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"

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
  std::ofstream out(folder / name, std::ios::binary);
  out << index.dump(2) << '\n';
  if (!out.flush()) throw Error(ErrorCode::kIo, (folder / name).string(), "cannot be written");
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

void copy_model_folder(const fs::path& from, const fs::path& to, const std::string& part,
                       const ProgressFn& progress) {
  std::error_code failed;
  fs::create_directories(to, failed);
  for (auto it = fs::recursive_directory_iterator(from, failed);
       !failed && it != fs::recursive_directory_iterator(); it.increment(failed)) {
    const fs::path relative = fs::relative(it->path(), from);
    const std::string extension = relative.extension().string();
    const bool in_part = *relative.begin() == part;
    // Of the part, configs stay; weights are written anew.
    if (in_part &&
        (extension == ".safetensors" || relative.string().ends_with(".safetensors.index.json"))) {
      continue;
    }
    if (it->is_directory()) {
      fs::create_directories(to / relative, failed);
      continue;
    }
    progress({relative.string(), 0, 1});
    fs::copy_file(it->path(), to / relative, fs::copy_options::overwrite_existing, failed);
    if (failed) break;
  }
  if (failed) throw Error(ErrorCode::kIo, to.string(), "cannot be written: {}", failed.message());
}

}  // namespace halftone
