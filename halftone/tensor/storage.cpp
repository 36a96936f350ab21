#include "halftone/tensor/storage.h"

#include <new>

#include "halftone/base/error.h"

namespace halftone {
namespace {

class OwnedStorage final : public Storage {
 public:
  OwnedStorage(std::byte* data, size_t size) : Storage(data, size, /*mapped=*/false) {}
  ~OwnedStorage() override { ::operator delete(data_, std::align_val_t{kAlignment}); }
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
    throw Error(ErrorCode::kOutOfMemory, "memory", "could not allocate {} bytes", bytes);
  }
  return std::make_shared<OwnedStorage>(data, size);
}

}  // namespace halftone
