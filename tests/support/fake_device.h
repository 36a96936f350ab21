// A device made of the CPU's own memory and kernels: what a Program does on a device, without one.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>

#include "halftone/base/error.h"
#include "halftone/kernels/device.h"

namespace halftone::test {

class FakeDevice final : public DeviceContext {
 public:
  Device device() const override { return {DeviceKind::kCuda, 7}; }
  DeviceMemoryInfo memory() const override { return {1 << 20, 1 << 20, *held, most_held}; }
  void forget_most_held() override { most_held = *held; }

  std::shared_ptr<Storage> allocate(int64_t bytes, const std::string& purpose) override {
    const DeviceGuard guard(this);
    if (on_allocate) on_allocate(bytes, purpose);
    *held += bytes;
    most_held = std::max<int64_t>(most_held, *held);
    return std::make_shared<Memory>(
        Storage::allocate(std::max<int64_t>(bytes, 1)), device(),
        std::shared_ptr<void>(nullptr, [h = held, bytes](void*) { *h -= bytes; }));
  }
  void upload(std::byte* to, std::span<const std::byte> from) override {
    const DeviceGuard guard(this);
    ++uploads;
    std::memcpy(to, from.data(), from.size());
  }
  void download(std::span<std::byte> to, const std::byte* from) override {
    const DeviceGuard guard(this);
    ++downloads;
    std::memcpy(to.data(), from, to.size());
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    const DeviceGuard guard(this);
    ++copies;
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  // Pages of its own, which no kernel may touch: from the first prefetch on nobody may.
  std::shared_ptr<Storage> allocate_pinned(int64_t bytes, const std::string&) override {
    const DeviceGuard guard(this);
    pinned += bytes;
    auto memory = std::make_shared<Pages>(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    std::erase_if(pages_, [](const auto& other) { return other.second.expired(); });
    pages_[memory->address()] = memory;
    return memory;
  }
  // As late as it may be; until then the place holds what nobody should read, or write.
  int prefetch(std::byte* to, std::span<const std::byte> from) override {
    const DeviceGuard guard(this);
    ++prefetches;
    std::memset(to, 0xFF, from.size());
    const auto pages = std::prev(pages_.upper_bound(from.data()))->second.lock();
    HT_ASSERT(pages != nullptr && from.data() + from.size() <= pages->address() + pages->size());
    pages->protect(PROT_NONE);
    const int copy = next_copy_++;
    under_way_[copy] = {to, from, pages};
    most_under_way = std::max(most_under_way, under_way_.size());
    return copy;
  }
  void await(int copy) override {
    const DeviceGuard guard(this);
    const auto found = under_way_.find(copy);
    HT_ASSERT(found != under_way_.end());
    const Prefetch& what = found->second;
    for (size_t i = 0; i < what.from.size(); ++i) HT_ASSERT(what.to[i] == std::byte{0xFF});
    what.pages->protect(PROT_READ);
    std::memcpy(what.to, what.from.data(), what.from.size());
    what.pages->protect(PROT_NONE);
    under_way_.erase(found);
  }
  size_t under_way() const { return under_way_.size(); }
  std::unique_ptr<LaunchPoint> point() override {
    ++points;
    return std::make_unique<Point>();
  }
  std::unique_ptr<SideCopies> side_copies() override { return std::make_unique<Copies>(); }
  void synchronize() override {}
  std::unique_ptr<Recording> record(const std::function<void()>& launches) override {
    if (refuse_to_record) throw Error(ErrorCode::kUnsupported, "fake", "does not record");
    ++recordings;
    return std::make_unique<Replay>(launches, *this);
  }
  double copy_bandwidth() override { return 1; }
  double time(const std::function<void()>& launches) override {
    launches();
    return 1;
  }
  double mark() override { return 1; }
  bool channels_last() const override { return turns_kernels; }

  std::function<void(int64_t, const std::string&)> on_allocate;
  std::shared_ptr<std::atomic<int64_t>> held = std::make_shared<std::atomic<int64_t>>(0);
  int64_t most_held = 0;
  bool refuse_to_record = false;
  bool turns_kernels = false;
  int uploads = 0, downloads = 0, copies = 0, recordings = 0, replays = 0, prefetches = 0,
      points = 0;
  int64_t pinned = 0;  // bytes, ever
  size_t most_under_way = 0;

 private:
  class Pages final : public Storage {
   public:
    explicit Pages(size_t size)
        : Storage(static_cast<std::byte*>(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
                  size, /*mapped=*/false) {
      HT_ASSERT(data_ != MAP_FAILED);
    }
    ~Pages() override { munmap(data_, size_); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    void protect(int how) { HT_ASSERT(mprotect(data_, size_, how) == 0); }
  };
  struct Prefetch {
    std::byte* to = nullptr;
    std::span<const std::byte> from;
    std::shared_ptr<Pages> pages;
  };
  class Memory final : public Storage {
   public:
    Memory(std::shared_ptr<Storage> host, Device device, std::shared_ptr<void> counted)
        : Storage(host->address(), host->size(), false, device),
          host_(std::move(host)),
          counted_(std::move(counted)) {}

   private:
    std::shared_ptr<Storage> host_;
    std::shared_ptr<void> counted_;
  };
  class Point final : public LaunchPoint {
   public:
    void wait() override {}  // what was launched is done
  };
  class Copies final : public SideCopies {
   public:
    void download(std::span<std::byte> to, const std::byte* from) override {
      std::memcpy(to.data(), from, to.size());
    }
    void upload(std::byte* to, std::span<const std::byte> from) override {
      std::memcpy(to, from.data(), from.size());
    }
  };
  class Replay final : public Recording {
   public:
    Replay(std::function<void()> launches, FakeDevice& device)
        : launches_(std::move(launches)), device_(device) {}
    void replay() override {
      ++device_.replays;
      launches_();
      HT_ASSERT(device_.under_way_.empty());  // a recording ends with all that it began
    }

   private:
    std::function<void()> launches_;
    FakeDevice& device_;
  };

  std::map<const std::byte*, std::weak_ptr<Pages>> pages_;  // by where they begin
  std::map<int, Prefetch> under_way_;
  int next_copy_ = 0;
};

}  // namespace halftone::test
