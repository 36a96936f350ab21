// A device made of the CPU's own memory and kernels: what a Program does on a device, without one.
#pragma once

#include <cstring>

#include "halftone/base/error.h"
#include "halftone/kernels/device.h"

namespace halftone::test {

class FakeDevice final : public DeviceContext {
 public:
  Device device() const override { return {DeviceKind::kCuda, 7}; }
  DeviceMemoryInfo memory() const override { return {1 << 20, 1 << 20, *held, most_held}; }
  void forget_most_held() override { most_held = *held; }

  std::shared_ptr<Storage> allocate(int64_t bytes, const std::string& purpose) override {
    if (on_allocate) on_allocate(bytes, purpose);
    *held += bytes;
    most_held = std::max<int64_t>(most_held, *held);
    return std::make_shared<Memory>(
        Storage::allocate(std::max<int64_t>(bytes, 1)), device(),
        std::shared_ptr<void>(nullptr, [h = held, bytes](void*) { *h -= bytes; }));
  }
  void upload(std::byte* to, std::span<const std::byte> from) override {
    ++uploads;
    std::memcpy(to, from.data(), from.size());
  }
  void download(std::span<std::byte> to, const std::byte* from) override {
    ++downloads;
    std::memcpy(to.data(), from, to.size());
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    ++copies;
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
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

  std::function<void(int64_t, const std::string&)> on_allocate;
  std::shared_ptr<int64_t> held = std::make_shared<int64_t>(0);
  int64_t most_held = 0;
  bool refuse_to_record = false;
  int uploads = 0, downloads = 0, copies = 0, recordings = 0, replays = 0;

 private:
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
  class Replay final : public Recording {
   public:
    Replay(std::function<void()> launches, FakeDevice& device)
        : launches_(std::move(launches)), device_(device) {}
    void replay() override {
      ++device_.replays;
      launches_();
    }

   private:
    std::function<void()> launches_;
    FakeDevice& device_;
  };
};

}  // namespace halftone::test
