#include "halftone/tensor/storage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "halftone/base/error.h"

namespace halftone {
namespace {

class OwnedStorage final : public Storage {
 public:
  OwnedStorage(std::byte* data, size_t size) : Storage(data, size, /*mapped=*/false) {}
  ~OwnedStorage() override { ::operator delete(data_, std::align_val_t{kAlignment}); }
};

class MappedStorage final : public Storage {
 public:
  MappedStorage(std::byte* data, size_t size) : Storage(data, size, /*mapped=*/true) {}
  ~MappedStorage() override {
    if (size_ > 0) ::munmap(data_, size_);
  }
};

struct FileDescriptor {
  int fd;
  ~FileDescriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

std::span<const std::byte> Storage::bytes() const {
  HT_ASSERT(device_.kind == DeviceKind::kCpu);
  return {data_, size_};
}

std::span<std::byte> Storage::mutable_bytes() {
  HT_ASSERT(!mapped_ && device_.kind == DeviceKind::kCpu);
  return {data_, size_};
}

std::shared_ptr<Storage> Storage::allocate(int64_t bytes) {
  HT_ASSERT(bytes >= 0);
  const auto size = static_cast<size_t>(bytes);
  auto* data =
      static_cast<std::byte*>(::operator new(size, std::align_val_t{kAlignment}, std::nothrow));
  if (data == nullptr) {
    throw Error(ErrorCode::kIo, "memory", "could not allocate {} bytes", bytes);
  }
  return std::make_shared<OwnedStorage>(data, size);
}

std::shared_ptr<const Storage> Storage::map_file(const std::filesystem::path& path) {
  const std::string name = path.string();
  // Without O_NONBLOCK a pipe of this name would hold us until somebody writes to it.
  const FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) {
    const auto code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
    throw Error(code, name, "{}", errno == ENOENT ? "no such file" : std::strerror(errno));
  }
  struct stat status{};
  if (::fstat(file.fd, &status) != 0) throw Error(ErrorCode::kIo, name, "{}", std::strerror(errno));
  if (S_ISDIR(status.st_mode))
    throw Error(ErrorCode::kInvalidInput, name, "is a folder, not a file");
  if (!S_ISREG(status.st_mode))
    throw Error(ErrorCode::kInvalidInput, name, "is not a regular file");
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return std::make_shared<MappedStorage>(nullptr, 0);  // mmap refuses length 0
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (data == MAP_FAILED) {
    throw Error(ErrorCode::kIo, name, "cannot map it: {}", std::strerror(errno));
  }
  return std::make_shared<MappedStorage>(static_cast<std::byte*>(data), size);
}

}  // namespace halftone
