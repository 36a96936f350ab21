// halftone inspect: what lies in a checkpoint.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/cli/cli.h"
#include "halftone/io/checkpoint.h"
#include "halftone/io/dialect.h"

namespace halftone::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// A file or folder of tensors, or one component of a pipeline folder.
struct Part {
  std::string name;
  Checkpoint checkpoint;
  DialectReport dialect;
  std::string error;   // why it could not be read, if it could not
  std::string broken;  // the same, or what is wrong with its markers
};

// The dialect, unless its markers cannot be read: then why not.
void detect(Part& part, const std::string& file) {
  std::vector<const TensorEntry*> entries;
  for (const auto& item : part.checkpoint.items()) entries.push_back(item.entry);
  try {
    part.dialect = detect_dialect(entries, part.checkpoint.metadata(), file);
  } catch (const Error& error) {
    part.dialect = {Dialect::kUnknown, error.what(), {}};
    // What another version wrote is not broken.
    if (error.code() != ErrorCode::kUnsupported) part.broken = error.what();
  }
}

Part open_part(const std::string& name, const fs::path& path) {
  Part part{name, Checkpoint::open(path), {}, {}, {}};
  detect(part, path.string());
  return part;
}

// A pipeline folder keeps its components in folders of their own.
std::vector<Part> open_parts(const fs::path& path) {
  std::vector<Part> parts;
  if (!is_folder(path) || Checkpoint::is_checkpoint_folder(path)) {
    parts.push_back(open_part("", path));
    return parts;
  }
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (const auto& item : fs::directory_iterator(path, ignored)) {
    if (is_folder(item.path())) folders.push_back(item.path());
  }
  std::sort(folders.begin(), folders.end());
  for (const fs::path& folder : folders) {
    const std::string name = folder.filename().string();
    try {
      if (Checkpoint::is_checkpoint_folder(folder)) parts.push_back(open_part(name, folder));
    } catch (const Error& error) {  // one bad component does not hide the others
      parts.push_back({name, {}, {}, error.what(), error.what()});
    }
  }
  if (parts.empty()) {
    throw Error(ErrorCode::kNotFound, path.string(),
                "neither it nor its folders hold a .safetensors file");
  }
  return parts;
}

// After everything that can be shown was shown.
void check_whole(const std::vector<Part>& parts, const std::string& path) {
  std::vector<std::string> broken;
  for (const Part& part : parts) {
    if (part.broken.empty()) continue;
    if (part.name.empty()) throw Error(ErrorCode::kInvalidInput, "", "{}", part.broken);
    broken.push_back(fmt::format("{} ({})", part.name, part.broken));
  }
  if (broken.empty()) return;
  throw Error(ErrorCode::kInvalidInput, path, "broken: {}", fmt::join(broken, ", "));
}

struct Total {
  int tensors = 0;
  int64_t bytes = 0;
};

std::map<std::string, Total> totals_by_dtype(const Checkpoint& checkpoint) {
  std::map<std::string, Total> totals;
  for (const auto& item : checkpoint.items()) {
    Total& total = totals[std::string(name_of(item.entry->dtype))];
    ++total.tensors;
    total.bytes += item.entry->byte_size();
  }
  return totals;
}

ordered_json part_json(const Part& part) {
  const Checkpoint& checkpoint = part.checkpoint;
  ordered_json out;
  if (!part.name.empty()) out["component"] = part.name;
  if (!part.error.empty()) {
    out["error"] = part.error;
    return out;
  }
  out["path"] = checkpoint.path().string();
  out["files"] = ordered_json::array();
  for (const auto& file : checkpoint.files()) {
    out["files"].push_back({{"path", file->path().string()}, {"bytes", file->file_size()}});
  }
  out["tensor_count"] = checkpoint.items().size();
  out["tensor_bytes"] = checkpoint.tensor_bytes();
  out["dtypes"] = ordered_json::object();
  for (const auto& [dtype, total] : totals_by_dtype(checkpoint)) {
    out["dtypes"][dtype] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
  }
  out["quantization"] = {{"dialect", to_string(part.dialect.dialect)},
                         {"evidence", part.dialect.evidence},
                         {"layers", part.dialect.layers}};
  out["metadata"] = checkpoint.metadata();
  out["unindexed"] = checkpoint.unindexed();
  out["tensors"] = ordered_json::array();
  for (const auto& [file, entry] : checkpoint.items()) {
    out["tensors"].push_back({{"name", entry->name},
                              {"dtype", name_of(entry->dtype)},
                              {"shape", entry->shape.dims()},
                              {"bytes", entry->byte_size()},
                              {"file", file->path().filename().string()}});
  }
  return out;
}

void print_summary(const Part& part) {
  const Checkpoint& checkpoint = part.checkpoint;
  fmt::print("{}{}\n", part.name.empty() ? "" : printable(part.name) + ": ",
             printable(checkpoint.path().string(), 1000));
  fmt::print("  {:<12} {} in {} file{}, {}\n", "tensors", checkpoint.items().size(),
             checkpoint.files().size(), checkpoint.files().size() == 1 ? "" : "s",
             human_bytes(checkpoint.tensor_bytes()));
  for (const auto& [dtype, total] : totals_by_dtype(checkpoint)) {
    fmt::print("  {:<12} {} tensors, {}\n", dtype, total.tensors, human_bytes(total.bytes));
  }
  if (part.dialect.dialect != Dialect::kNone) {
    std::string layers;
    for (const auto& [format, count] : part.dialect.layers) {
      layers += fmt::format("{}{} x {}", layers.empty() ? "" : ", ", count, printable(format));
    }
    fmt::print("  {:<12} {} ({}): {}\n", "quantized", to_string(part.dialect.dialect),
               printable(part.dialect.evidence), layers);
  } else {
    fmt::print("  {:<12} no\n", "quantized");
  }
  for (const auto& [key, value] : checkpoint.metadata()) {
    fmt::print("  {:<12} {} = {}\n", "metadata", printable(key), printable(value, 120));
  }
  for (const std::string& name : checkpoint.unindexed()) {
    fmt::print("  {:<12} {} lies in a shard, but the index does not name it\n", "warning",
               printable(name));
  }
}

void print_tensors(const Checkpoint& checkpoint) {
  size_t width = 6;
  for (const auto& item : checkpoint.items()) {
    width = std::max(width, printable(item.entry->name).size());
  }
  fmt::print("\n  {:<{}}  {:<11}  {:<20}  {:>12}\n", "TENSOR", width, "DTYPE", "SHAPE", "SIZE");
  for (const auto& item : checkpoint.items()) {
    const TensorEntry& entry = *item.entry;
    fmt::print("  {:<{}}  {:<11}  {:<20}  {:>12}\n", printable(entry.name), width,
               name_of(entry.dtype), entry.shape.str(), human_bytes(entry.byte_size()));
  }
}

}  // namespace

void add_inspect(CLI::App& app, const Context&) {
  CLI::App* command = app.add_subcommand("inspect", "What lies in a checkpoint");
  command->footer(
      "Reads only headers, so it is quick for files of any size. Examples:\n"
      "  halftone inspect model.safetensors\n"
      "  halftone inspect --summary Z-Image/          a pipeline folder\n"
      "  halftone inspect --json transformer/ | jq .quantization");
  struct Options {
    std::string path;
    bool json = false, summary = false;
  };
  auto options = std::make_shared<Options>();
  command
      ->add_option("path", options->path,
                   "A .safetensors file, a folder of shards with an index, or a pipeline folder")
      ->required()
      ->type_name("FILE|DIR");
  command->add_flag("--summary", options->summary, "Leave out the list of tensors");
  command->add_flag("--json", options->json, "Print one JSON object instead of text");
  command->callback([options] {
    const auto parts = open_parts(options->path);
    if (options->json) {
      ordered_json out;
      if (parts.size() == 1 && parts[0].name.empty()) {
        out = part_json(parts[0]);
      } else {
        out["path"] = options->path;
        for (const Part& part : parts) out["components"].push_back(part_json(part));
      }
      if (options->summary) {
        out.erase("tensors");
        if (out.contains("components")) {
          for (auto& component : out["components"]) component.erase("tensors");
        }
      }
      print_json(out);
      check_whole(parts, options->path);
      return;
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) fmt::print("\n");
      if (!parts[i].error.empty()) {
        fmt::print("{}: cannot be read: {}\n", printable(parts[i].name), parts[i].error);
        continue;
      }
      print_summary(parts[i]);
      if (!options->summary) print_tensors(parts[i].checkpoint);
    }
    check_whole(parts, options->path);
  });
}

}  // namespace halftone::cli
