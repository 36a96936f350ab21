// A device made of the CPU's own memory and kernels: what a Program does on a device, without one.
#pragma once

#include <cstring>

#include "halftone/base/error.h"
#include "halftone/kernels/device.h"

namespace halftone::test {

class FakeDevice final : public DeviceContext {
 public:
  Device device() const override { return {DeviceKind::kCuda, 7}; }
  DeviceMemoryInfo memory() const override { return {1 << 20, 1 << 20}; }

  std::shared_ptr<Storage> allocate(int64_t bytes, const std::string&) override {
    return std::make_shared<Memory>(Storage::allocate(std::max<int64_t>(bytes, 1)), device());
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

  bool refuse_to_record = false;
  int uploads = 0, downloads = 0, copies = 0, recordings = 0, replays = 0;

 private:
  class Memory final : public Storage {
   public:
    Memory(std::shared_ptr<Storage> host, Device device)
        : Storage(host->address(), host->size(), false, device), host_(std::move(host)) {}

   private:
    std::shared_ptr<Storage> host_;
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
