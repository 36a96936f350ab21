#include "halftone/io/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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

// A rename would quietly replace a pipe or a device by a file.
void check_target(const fs::path& path) {
  if (path.empty()) throw Error(ErrorCode::kUsage, "output", "the name is empty");
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  if (fs::is_directory(status)) throw Error(ErrorCode::kIo, path.string(), "is a folder");
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw Error(ErrorCode::kIo, path.string(), "is not a regular file");
  }
}

void sync_folder(const fs::path& folder) {
  // Makes the rename durable. Some file systems cannot; the data itself is already synced.
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(fs::path path, std::span<const TensorSpec> tensors,
                                     const Metadata& metadata)
    : path_(std::move(path)) {
  const auto entries = lay_out(tensors, path_.string());
  const std::string header = write_safetensors_header(entries, metadata);
  const auto data_offset = static_cast<int64_t>(header.size());
  file_size_ = data_offset + (entries.empty() ? 0 : entries.back().end);
  for (const TensorEntry& entry : entries) {
    const Progress range{data_offset + entry.begin, data_offset + entry.end};
    if (!progress_.emplace(entry.name, range).second) {
      throw Error(ErrorCode::kInvalidInput, path_.string(), "two tensors are called '{}'",
                  printable(entry.name));
    }
  }
  check_target(path_);

  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_ = path_;
    temporary_ += fmt::format(".{}-{}.tmp", ::getpid(), attempt);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && (errno != EEXIST || attempt > 1000)) {
      const int error = errno;
      temporary_.clear();
      fail("cannot create it", error);
    }
  }
  // The destructor does not run for a constructor that throws.
  try {
    // Where the file system can tell at once that the disk is too full, no work is lost.
    if (::fallocate(fd_, 0, 0, file_size_) != 0 && (errno == ENOSPC || errno == EFBIG)) {
      fail(fmt::format("no room for its {}", human_bytes(file_size_)).c_str(), errno);
    }
    write_at(0, std::as_bytes(std::span(header)));
  } catch (...) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = progress_.find(std::string(name));
  HT_ASSERT(found != progress_.end());
  Progress& range = found->second;
  HT_ASSERT(range.offset + static_cast<int64_t>(bytes.size()) <= range.end);
  write_at(range.offset, bytes);
  range.offset += static_cast<int64_t>(bytes.size());
}

void SafetensorsWriter::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("cannot write", n < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void SafetensorsWriter::finish() {
  for (const auto& [name, range] : progress_) HT_ASSERT(range.offset == range.end);
  if (::fsync(fd_) != 0) fail("cannot sync", errno);
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) fail("cannot close", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename", errno);
  temporary_.clear();
  sync_folder(path_.parent_path());
}

void SafetensorsWriter::fail(const char* action, int error) const {
  throw Error(ErrorCode::kIo, path_.string(), "{}: {}", action, std::strerror(error));
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
