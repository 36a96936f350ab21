#include "halftone/io/safetensors_writer.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/text.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

// Widest dtypes first, so that every tensor is aligned although no gaps are allowed.
std::vector<TensorEntry> lay_out(std::span<const TensorSpec> tensors, const std::string& file) {
  std::vector<TensorEntry> entries;
  entries.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) {
    entries.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
  }
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    const int align_a = alignment_of(a.dtype), align_b = alignment_of(b.dtype);
    return align_a != align_b ? align_a > align_b : natural_less(a.name, b.name);
  });
  int64_t offset = 0;
  for (TensorEntry& entry : entries) {
    const auto bytes = entry.shape.checked_bytes(entry.dtype);
    if (!bytes || entry.name == "__metadata__") {
      throw Error(ErrorCode::kInvalidInput, file, "tensor '{}': {} of shape {} cannot be stored",
                  printable(entry.name), name_of(entry.dtype), entry.shape);
    }
    entry.begin = offset;
    entry.end = offset += *bytes;
  }
  return entries;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const fs::path& path, std::span<const TensorSpec> tensors,
                                     const Metadata& metadata)
    : file_(path, OutputFile::Access::kRandom) {
  const auto entries = lay_out(tensors, path.string());
  const std::string header = write_safetensors_header(entries, metadata, path.string());
  const auto data_offset = static_cast<int64_t>(header.size());
  file_size_ = data_offset + (entries.empty() ? 0 : entries.back().end);
  for (const TensorEntry& entry : entries) {
    const Progress range{data_offset + entry.begin, data_offset + entry.end};
    if (!progress_.emplace(entry.name, range).second) {
      throw Error(ErrorCode::kInvalidInput, path.string(), "two tensors are called '{}'",
                  printable(entry.name));
    }
  }
  // Where the file system can tell at once that the disk is too full, no work is lost.
  file_.reserve(file_size_);
  file_.write_at(0, std::as_bytes(std::span(header)));
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = progress_.find(std::string(name));
  HT_ASSERT(found != progress_.end());
  Progress& range = found->second;
  HT_ASSERT(range.offset + static_cast<int64_t>(bytes.size()) <= range.end);
  file_.write_at(range.offset, bytes);
  range.offset += static_cast<int64_t>(bytes.size());
}

void SafetensorsWriter::finish() {
  for (const auto& [name, range] : progress_) HT_ASSERT(range.offset == range.end);
  file_.commit();
}

void write_safetensors(const fs::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const Metadata& metadata) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back({name, tensor.dtype(), tensor.shape()});
  SafetensorsWriter writer(path, specs, metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor.bytes());
  writer.finish();
}

}  // namespace halftone
