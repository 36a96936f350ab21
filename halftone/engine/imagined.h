// Memory that is only imagined, for plans of what is not there yet: addresses without anything
// behind them, which nobody may follow.
#pragma once

#include "halftone/base/error.h"
#include "halftone/kernels/device.h"
#include "halftone/passes/quantize.h"
#include "halftone/runtime/weights.h"

namespace halftone {

std::shared_ptr<Storage> imagine(int64_t bytes, Device device = {});

// These weights as they are once what `report` says is converted.
void imagine_conversion(Weights& weights, const QuantizeReport& report);

// Stands for a device where weights are placed: nothing is held or copied.
class ImaginedDevice final : public DeviceContext {
 public:
  explicit ImaginedDevice(const DeviceContext& real) : real_(real) {}

  Device device() const override { return real_.device(); }
  DeviceMemoryInfo memory() const override { return real_.memory(); }
  std::shared_ptr<Storage> allocate(int64_t bytes, const std::string&) override {
    return imagine(bytes, device());
  }
  std::shared_ptr<Storage> allocate_pinned(int64_t bytes, const std::string&) override {
    return imagine(bytes);
  }
  int prefetch(std::byte*, std::span<const std::byte>) override { HT_ASSERT(false); }
  void await(int) override { HT_ASSERT(false); }
  bool holds() const override { return false; }
  bool channels_last() const override { return real_.channels_last(); }
  void upload(std::byte*, std::span<const std::byte>) override {}
  void download(std::span<std::byte>, const std::byte*) override { HT_ASSERT(false); }
  void copy(std::byte*, const std::byte*, int64_t) override { HT_ASSERT(false); }
  std::unique_ptr<LaunchPoint> point() override { HT_ASSERT(false); }
  std::unique_ptr<SideCopies> side_copies() override { HT_ASSERT(false); }
  void synchronize() override {}
  std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }
  double copy_bandwidth() override { return 0; }
  double time(const std::function<void()>&) override { return 0; }
  double mark() override { return 0; }

 private:
  const DeviceContext& real_;
};

}  // namespace halftone
