#include "halftone/tensor/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <vector>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// What the handler can reach: a fixed table without locks. A mapping beyond its size is not
// guarded.
struct Slot {
  std::atomic<uintptr_t> begin = 0, end = 0;  // begin is set last and cleared first
  std::atomic<bool> lost = false;
};
std::array<Slot, 4096> slots;
std::mutex slots_in_use;
std::atomic<bool> surviving = false;

Slot* take_slot(const std::byte* data, size_t size) {
  const std::lock_guard lock(slots_in_use);
  for (Slot& slot : slots) {
    if (slot.begin != 0) continue;
    slot.lost = false;
    slot.end = reinterpret_cast<uintptr_t>(data) + size;
    slot.begin = reinterpret_cast<uintptr_t>(data);
    return &slot;
  }
  return nullptr;
}

// From the page that is lost to the end of the mapping: zeros.
void on_bus_error(int, siginfo_t* info, void*) {
  const int before = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Slot& slot : slots) {
    const uintptr_t begin = slot.begin, end = slot.end;
    if (begin == 0 || address < begin || address >= end) continue;
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const uintptr_t from = address / page * page;
    slot.lost = true;
    void* const zeros = ::mmap(reinterpret_cast<void*>(from), end - from, PROT_READ,
                               MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = before;
    if (zeros != MAP_FAILED) return;
  }
  std::signal(SIGBUS, SIG_DFL);  // not ours: happens again, and ends the process
}

class SignalStack {
 public:
  SignalStack() {
    stack_t now{};
    if (::sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;  // has one
    memory_.resize(kBytes);
    stack_t stack{};
    stack.ss_sp = memory_.data();
    stack.ss_size = kBytes;
    ::sigaltstack(&stack, nullptr);
  }
  ~SignalStack() {
    if (memory_.empty()) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    ::sigaltstack(&none, nullptr);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  static constexpr size_t kBytes = 64 << 10;  // registers of the widest vectors take 11 KiB
  std::vector<std::byte> memory_;
};

class MappedStorage final : public Storage {
 public:
  MappedStorage(std::byte* data, size_t size, std::string name)
      : Storage(data, size, /*mapped=*/true),
        name_(std::move(name)),
        slot_(size > 0 ? take_slot(data, size) : nullptr) {}
  ~MappedStorage() override {
    if (slot_ != nullptr) slot_->begin = 0;
    if (size_ > 0) ::munmap(data_, size_);
  }
  void check_intact() const override {
    if (slot_ == nullptr || !slot_->lost) return;
    throw Error(ErrorCode::kIo, name_, "was truncated, or could not be read, while it was in use");
  }

 private:
  std::string name_;
  Slot* slot_;
};

struct FileDescriptor {
  int fd;
  ~FileDescriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

void survive_truncated_files() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
  surviving = true;
  prepare_thread_for_truncated_files();
}

void prepare_thread_for_truncated_files() {
  if (!surviving.load(std::memory_order_relaxed)) return;
  thread_local const SignalStack stack;
}

std::shared_ptr<const Storage> Storage::map_file(const std::filesystem::path& path) {
  const std::string name = path.string();
  // Without O_NONBLOCK a pipe of this name would hold us until somebody writes to it.
  const FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0 && errno == ENXIO) {  // a socket, or a device that is not there
    throw Error(ErrorCode::kInvalidInput, name, "is not a regular file");
  }
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
  if (size == 0) return std::make_shared<MappedStorage>(nullptr, 0, name);  // mmap refuses length 0
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (data == MAP_FAILED) {
    throw Error(ErrorCode::kIo, name, "cannot map it: {}", std::strerror(errno));
  }
  return std::make_shared<MappedStorage>(static_cast<std::byte*>(data), size, name);
}

}  // namespace halftone
