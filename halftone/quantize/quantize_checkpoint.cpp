#include "halftone/quantize/quantize_checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/io/output.h"
#include "halftone/io/quantization_metadata.h"
#include "halftone/quantize/convert_file.h"

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

// A tensor that lies in two shards would be written twice, and the new index could name either.
void check_stored_once(const Checkpoint& input) {
  for (const auto& file : input.files()) {
    for (const TensorEntry& tensor : file->tensors()) {
      const Checkpoint::Item* item = input.find(tensor.name);
      if (item == nullptr || item->file == file.get()) continue;
      throw Error(ErrorCode::kInvalidInput, file->path().string(),
                  "tensor '{}' lies in shard '{}' as well", printable(tensor.name),
                  printable(input.shard_name(*item->file).string()));
    }
  }
}

std::vector<fs::path> file_names(const Checkpoint& checkpoint) {
  std::vector<fs::path> names;
  for (const auto& file : checkpoint.files()) names.push_back(checkpoint.shard_name(*file));
  return names;
}

// A single file needs no index, unless it would not be found without.
void write_index(const fs::path& folder, const std::vector<fs::path>& names) {
  if (names.size() == 1 && !names[0].has_parent_path()) return;
  const std::string stem = names[0].stem().string();
  const size_t cut = stem.find("-0");  // NAME-00001-of-00003
  const fs::path path = folder / (stem.substr(0, cut) + ".safetensors.index.json");
  nlohmann::ordered_json index;
  int64_t total = 0;
  index["metadata"]["total_size"] = 0;
  for (const fs::path& name : names) {
    const SafetensorsFile file(folder / name);
    for (const TensorEntry& tensor : file.tensors()) {
      index["weight_map"][tensor.name] = name.generic_string();
      total += tensor.byte_size();
    }
  }
  index["metadata"]["total_size"] = total;
  write_file(path, index.dump(2) + "\n");
}

void make_folder(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw Error(ErrorCode::kIo, folder.string(), "{}", failed.message());
}

void rename_file(const fs::path& from, const fs::path& to) {
  std::error_code failed;
  fs::rename(from, to, failed);
  if (failed) throw Error(ErrorCode::kIo, from.string(), "cannot rename: {}", failed.message());
}

}  // namespace

FileQuantizeReport quantize_checkpoint(const Checkpoint& input, const fs::path& folder,
                                       const FileQuantizeOptions& options, const Kernels& kernels,
                                       Stream stream, const ProgressFn& progress) {
  check_stored_once(input);
  FileQuantizeReport report;
  int64_t before = 0;
  const int64_t total = input.tensor_bytes();
  for (const auto& file : input.files()) {
    const fs::path output = folder / input.shard_name(*file);
    make_folder(output.parent_path());
    const ProgressFn part = [&](const Progress& p) {
      progress({p.item, std::min(before + p.done, total), total});
    };
    add(report, quantize_file(file->path(), output, options, kernels, stream, part));
    for (const TensorEntry& tensor : file->tensors()) before += tensor.byte_size();
  }
  if (report.converted.empty()) {
    throw Error(ErrorCode::kInvalidInput, input.path().string(),
                "nothing to convert: the recipe keeps all {} weights", report.kept.size());
  }
  write_index(folder, file_names(input));
  return report;
}

void convert_checkpoint(const Checkpoint& input, const fs::path& folder, Dialect to,
                        const ProgressFn& progress) {
  const std::vector<fs::path> names = file_names(input);
  for (const fs::path& name : names) {
    const fs::path path = folder / name;
    // A shard may hold nothing but what was copied.
    if (!SafetensorsFile(path).metadata().contains(kQuantizationKey)) continue;
    fs::path ours = path;
    ours += ".halftone";
    rename_file(path, ours);
    FileConvertOptions how;
    how.to = to;
    convert_file(ours, path, how, progress);
    std::error_code ignored;
    fs::remove(ours, ignored);
  }
  write_index(folder, names);
}

namespace {

void copy_bytes(const fs::path& from, const fs::path& to, const ProgressFn& progress) {
  const auto file = Storage::map_file(from);
  const std::string name = from.filename().string();
  OutputFile copy(to);
  constexpr size_t kChunk = 16 << 20;  // short enough to cancel
  progress({name, 0, 1});
  for (auto bytes = file->bytes(); !bytes.empty();) {
    const auto chunk = bytes.first(std::min(kChunk, bytes.size()));
    copy.write(chunk);
    bytes = bytes.subspan(chunk.size());
    progress({name, 0, 1});
  }
  file->check_intact();
  copy.commit();
  // It may have shrunk since the model was loaded.
  if (from.extension() == ".safetensors") static_cast<void>(SafetensorsFile(to));
}

// What is below `from`, links followed and under their own names; below `part` without weights.
// `above` are the folders on the way, by which links that lead back are found.
void copy_below(const fs::path& from, const fs::path& to, const std::string& part, bool weights,
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
      copy_below(entry.path(), to / name, part, weights && (above.size() > 1 || name != part),
                 above, progress);
    } else if (!fs::is_regular_file(status)) {
      throw Error(ErrorCode::kInvalidInput, entry.path().string(), "{}",
                  fs::exists(status) ? "is neither a file nor a folder" : "is a link to nothing");
    } else if (weights || (name.extension() != ".safetensors" &&
                           !name.string().ends_with(".safetensors.index.json"))) {
      copy_bytes(entry.path(), to / name, progress);
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
    copy_below(from, to, part, true, above, progress);
  } catch (const fs::filesystem_error& error) {
    const fs::path& where = error.path2().empty() ? error.path1() : error.path2();
    throw Error(ErrorCode::kIo, where.string(), "cannot be copied: {}", error.code().message());
  }
}

}  // namespace halftone
